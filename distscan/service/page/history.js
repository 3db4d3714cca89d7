// The jobs that have ended.

import { ask } from "./access.js";
import { details } from "./details.js";
import { byId, cell, el, list, say, table } from "./dom.js";
import { fault } from "./fault.js";
import { badge, files, operator } from "./files.js";
import { moment, momentInFull, seconds, visible, whole } from "./format.js";
import { fit, legend, timeline, times } from "./timeline.js";

const COLUMNS = ["Job", "State", "Operator", "Files", "Waited and ran", "Ran", "Ended"];
const PAGE = 100; // older jobs that are asked for at a time

export class JobHistory {
  #model;
  #empty = el("p", { class: "empty" }, "");
  #legend = legend();
  #table = table("Jobs that have ended", COLUMNS);
  #older = el("button", { type: "button", class: "quiet more" }, "Show older jobs");
  #text = byId("text");
  #state = byId("state");

  constructor(model) {
    this.#model = model;
    byId("history").append(this.#legend, this.#empty, this.#table, this.#older);
    this.#text.addEventListener("input", () => this.show());
    this.#state.addEventListener("input", () => this.show());
    this.#older.addEventListener("click", () => this.#getOlder());
  }

  /** Show the jobs that pass the filters. */
  show() {
    const all = this.#model.ended();
    const words = this.#text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const kept = all.filter((job) => this.#state.value === "" || job.state === this.#state.value)
      .filter((job) => words.every((word) => searched(job).includes(word)));
    const filtered = kept.length < all.length ? `${whole(kept.length)} of ${whole(all.length)}` : whole(all.length);
    say(byId("history-count"), all.length > 0 ? filtered : "");
    list(this.#table, kept, (job) => job.number, made, update);
    fit(this.#legend, kept);
    this.#table.hidden = this.#legend.hidden = kept.length === 0;
    this.#empty.hidden = kept.length > 0;
    say(this.#empty, all.length > 0 ? "No job passes the filters." : "No job has ended yet.");
    this.#older.hidden = all.length === 0 || all.at(-1).number === 1;
  }

  async #getOlder() {
    this.#older.disabled = true;
    try {
      const before = this.#model.ended().at(-1).number;
      const answer = await ask(`v1/jobs?most=${PAGE}&before=${before}`);
      const { jobs } = await answer.json();
      this.#model.addOlder(jobs);
      this.show();
      if (jobs.length < PAGE) this.#older.hidden = true;
    } catch (error) {
      fault(`Older jobs are not shown: ${error.message}`);
    }
    this.#older.disabled = false;
  }
}

/** Return the text of a job in which the filter looks. */
function searched({ number, request, error, key }) {
  const all = [number, request.op, ...request.inputs, request.output, error?.type, error?.message, key];
  return all.filter(Boolean).join("\n").toLowerCase();
}

/** Return the rows of a job: one that is always shown, and one with its details. */
function made(job) {
  const id = `details-${job.number}`;
  const opened = el("tr", { role: "row", id, class: "opened", hidden: true });
  const button = el("button", { type: "button", class: "open", "aria-expanded": "false", "aria-controls": id,
    "aria-label": `Details of job ${job.number}` }, String(job.number));
  button.addEventListener("click", () => {
    opened.hidden = !opened.hidden;
    button.setAttribute("aria-expanded", String(!opened.hidden));
  });
  const row = el("tr", { role: "row" }, cell({ class: "number" }, button));
  return el("tbody", { role: "rowgroup", "data-job": job.number }, row, opened);
}

/** Fill the rows of a job. */
function update(rows, job) {
  const [row, opened] = rows.children;
  const { ran } = times(job);
  const failed = job.error ? el("p", { class: "wrong" }, firstLine(job.error.message)) : null;
  while (row.children.length > 1) row.lastChild.remove();
  row.append(
    cell({ class: "state" }, badge(job.state)),
    cell({ class: "op" }, operator(job.request)),
    cell({ class: "paths" }, files(job), failed),
    cell({ class: "bars" }, timeline(job)),
    cell({ class: "time", "data-label": "ran" }, ran === null ? "–" : seconds(ran)),
    cell({ class: "time", "data-label": "ended" },
      el("time", { title: momentInFull(job.ended), datetime: new Date(job.ended * 1000).toISOString() }, moment(job.ended))));
  opened.replaceChildren(cell({ colspan: COLUMNS.length }, details(job)));
}

const firstLine = (text) => visible(text.trim().split("\n")[0]);
