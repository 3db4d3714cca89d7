// The jobs that have ended, and all that is known of each.

import { byId, cell, el, announce, fault, list, say, table } from "./dom.js";
import { bytes, count, moment, momentInFull, rate, seconds, visible, whole } from "./format.js";
import { badge, files, hashOf, link, operator, options } from "./jobs.js";
import { ask } from "./service.js";
import { jobChart, phaseName, swatch } from "./timeline.js";

const COLUMNS = ["Job", "State", "Operator", "Files", "Waited", "Ran", "Ended"];
const PAGE = 100; // older jobs that are asked for at a time

export class JobHistory {
  #model;
  #resubmit;
  #empty = el("p", { class: "empty" }, "");
  #table = table("Jobs that have ended", COLUMNS);
  #older = el("button", { type: "button", class: "quiet more" }, "Show older jobs");
  #text = byId("text");
  #state = byId("state");

  /** `resubmit` is called with a job of which the user wants another one. */
  constructor(model, resubmit) {
    this.#model = model;
    this.#resubmit = resubmit;
    byId("history").append(this.#empty, this.#table, this.#older);
    this.#text.addEventListener("input", () => this.show());
    this.#state.addEventListener("input", () => this.show());
    this.#older.addEventListener("click", () => this.#getOlder());
  }

  /** Show the jobs that pass the filters. */
  show() {
    const all = this.#model.ended();
    const words = this.#text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const passing = all.filter((job) => this.#state.value === "" || job.state === this.#state.value)
      .filter((job) => words.every((word) => searched(job).includes(word)));
    const filtered = passing.length < all.length ? `${whole(passing.length)} of ${whole(all.length)}` : whole(all.length);
    say(byId("history-count"), all.length > 0 ? filtered : "");
    list(this.#table, passing, (job) => job.number, (job) => this.#make(job), update);
    this.#table.hidden = passing.length === 0;
    this.#empty.hidden = passing.length > 0;
    say(this.#empty, all.length > 0 ? "No job passes the filters." : "No job has ended yet.");
    this.#older.hidden = all.length === 0 || this.#model.oldest <= 1;
  }

  /** Show the details of a job that has ended, whatever the filters are; return its row. */
  open(number) {
    let row = this.#row(number);
    if (!row) {
      this.#text.value = this.#state.value = "";
      this.show();
      row = this.#row(number);
    }
    if (row) this.#toggle(row, this.#model.jobs.get(number), true);
    return row;
  }

  /** Draw the charts of jobs that are open again: their times have come, or the width is another. */
  drawCharts() {
    for (const rows of this.#table.querySelectorAll("tbody.is-open")) {
      drawChart(rows.querySelector(".details"), this.#model.times.get(Number(rows.dataset.job)));
    }
  }

  #row(number) {
    return this.#table.querySelector(`tbody[data-job="${number}"]`);
  }

  /** Return the rows of a job: one that is always shown, and one with its details. */
  #make(job) {
    const id = `details-${job.number}`;
    const second = el("tr", { role: "row", id, class: "opened", hidden: true });
    const button = el("button", { type: "button", class: "open", "aria-expanded": "false", "aria-controls": id,
      "aria-label": `Details of job ${job.number}` }, String(job.number));
    const first = el("tr", { role: "row" }, cell({ class: "number" }, button));
    const rows = el("tbody", { role: "rowgroup", "data-job": job.number }, first, second);
    button.addEventListener("click", () => {
      const open = second.hidden;
      this.#toggle(rows, this.#model.jobs.get(job.number), open);
      if (open) window.history.replaceState(null, "", hashOf(job.number));
      else if (location.hash === hashOf(job.number)) window.history.replaceState(null, "", location.pathname);
    });
    return rows;
  }

  #toggle(rows, job, open) {
    const second = rows.lastChild;
    second.hidden = !open;
    rows.classList.toggle("is-open", open);
    rows.querySelector("button.open").setAttribute("aria-expanded", String(open));
    if (!open) second.replaceChildren();
    if (open && !second.hasChildNodes()) {
      second.append(cell({ colspan: COLUMNS.length }, details(job, this.#resubmit)));
      this.drawCharts();
    }
  }

  async #getOlder() {
    this.#older.disabled = true;
    try {
      const answer = await ask(`v1/jobs?most=${PAGE}&before=${this.#model.oldest}`);
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

/** Return the seconds that a job waited and ran; null is not known. */
function durations({ created, started, ended }) {
  const ran = started === null || ended === null ? null : Math.max(0, ended - started);
  return { waited: Math.max(0, (started ?? ended) - created), ran };
}

/** Fill the row of a job. */
function update(rows, job) {
  const row = rows.firstChild;
  const { waited, ran } = durations(job);
  const reason = job.error ? el("p", { class: "wrong" }, firstLine(job.error.message)) : null;
  while (row.children.length > 1) row.lastChild.remove();
  row.append(
    cell({ class: "state" }, badge(job.state)),
    cell({ class: "op" }, operator(job.request)),
    cell({ class: "paths" }, files(job), reason),
    cell({ class: "time", "data-label": "waited" }, seconds(waited)),
    cell({ class: "time", "data-label": "ran" }, ran === null ? "–" : seconds(ran)),
    cell({ class: "time", "data-label": "ended" }, timeOf(job.ended)));
}

const timeOf = (time) =>
  el("time", { title: momentInFull(time), datetime: new Date(time * 1000).toISOString() }, moment(time));

const firstLine = (text) => visible(text.trim().split("\n")[0]);

// ---- the details of a job ---------------------------------------------------------------------

const WIDE = new Set(["Input", "Inputs", "Output", "Scanned by"]);

/** Return an element with all that is known of a job. Its chart is drawn by `drawChart`. */
function details(job, resubmit) {
  const again = el("button", { type: "button", class: "quiet" }, "Submit again");
  again.addEventListener("click", () => resubmit(job));
  return el("div", { class: "details" },
    job.error && el("div", { class: "error" }, el("strong", {}, job.error.type),
      el("pre", {}, job.error.message.split("\n").map(visible).join("\n"))),
    el("dl", { class: "facts" }, ...facts(job)),
    el("div", { class: "chart", hidden: true }),
    job.report && phases(job.report),
    el("p", { class: "actions" }, link(job.number, `Link to job ${job.number}`), copyButton(job.number), again));
}

/** Return a button that copies the link to a job; null where a page may not copy. */
function copyButton(number) {
  if (!navigator.clipboard) return null; // a page of HTTP from another machine
  const button = el("button", { type: "button", class: "quiet" }, "Copy link");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(new URL(hashOf(number), location.href).href);
      announce(`The link to job ${number} is copied`);
      say(button, "Copied");
      setTimeout(() => say(button, "Copy link"), 2000);
    } catch {
      fault("The link is not copied: the browser does not let this page copy.");
    }
  });
  return button;
}

/** Draw when each rank was busy, if it is known. */
function drawChart(parent, times) {
  const chart = parent?.querySelector(".chart");
  if (!chart || !times?.ranks.some((rank) => Object.keys(rank).length > 0)) return; // it failed at once
  chart.hidden = false;
  jobChart(chart, times);
}

/** Return names of facts, and the facts. */
function facts(job) {
  const { request, report } = job;
  const { waited, ran } = durations(job);
  const more = job.input_count - 1; // the page knows the first input alone
  const when = (time) => (time === null ? null : timeOf(time));
  const what = report && `${count(report.elements, "element")}, ${report.dtype_in} to ${report.dtype_out}`;
  const where = report && `${count(report.ranks, "rank")} on ${count(report.nodes, "node")}, ` +
    `${report.strategy}, ${report.device}`;
  const total = report?.total ?? null;
  return [
    [more > 0 ? "Inputs" : "Input", visible(request.inputs[0]) + (more > 0 ? `\nand ${whole(more)} more` : "")],
    ["Output", visible(request.output)],
    ["Options", options(request)],
    ["Array", what],
    ["Total", typeof total === "string" || total === null ? total : JSON.stringify(total)],
    ["Scanned by", where],
    ["Submitted", when(job.created)],
    ["Waited", seconds(waited)],
    ["Begun", when(job.started)],
    ["Ran", ran === null ? null : seconds(ran)],
    ["Ended", when(job.ended)],
    ["Attempts", job.attempts > 1 ? whole(job.attempts) : null],
    ["Key", job.key === null ? null : visible(job.key)],
  ].filter(([, fact]) => fact).map(([name, fact]) =>
    el("div", { class: WIDE.has(name) && "wide" }, el("dt", {}, name), el("dd", {}, fact)));
}

/** Return a table of the phases of a report. */
function phases(report) {
  const head = ["Phase", "Time", "Bytes", "Rate", "Bound by"].map((name) => el("th", { scope: "col" }, name));
  const rows = Object.entries(report.seconds).filter(([, time]) => time > 0).map(([phase, time]) => {
    const moved = report.bytes[phase] ?? 0;
    return el("tr", {},
      el("th", { scope: "row" }, swatch(phase), phaseName(phase)),
      el("td", {}, seconds(time)),
      el("td", {}, moved ? bytes(moved) : ""),
      el("td", {}, moved ? rate(moved / time) : ""),
      el("td", {}, report.bounds[phase] ?? ""));
  });
  return el("table", { class: "phases" },
    el("caption", {}, "Times of the slowest rank; phases overlap."),
    el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows));
}
