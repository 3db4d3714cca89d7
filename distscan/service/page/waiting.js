// The jobs that wait, in the order in which they will run.

import { cancelButton } from "./cancel.js";
import { since } from "./clock.js";
import { byId, cell, el, list, say, table } from "./dom.js";
import { files, operator } from "./files.js";
import { count, whole } from "./format.js";

const FEW = 20; // rows, until more are asked for

export class Waiting {
  #parent = byId("waiting");
  #empty = el("p", { class: "empty" }, "No job waits.");
  #table = table("Jobs that wait", ["Job", "Operator", "Files", "Waits for", el("span", { class: "unseen" }, "Cancel")]);
  #body = el("tbody", { role: "rowgroup" });
  #more = el("button", { type: "button", class: "quiet more" }, "");
  #all = false;

  /** `again` is called when the user asks for all jobs. */
  constructor(again) {
    this.#table.append(this.#body);
    this.#parent.append(this.#empty, this.#table, this.#more);
    this.#more.addEventListener("click", () => {
      this.#all = !this.#all;
      again();
    });
  }

  /** Show the jobs; `queued` is their number, also of those that the page does not know. */
  show(jobs, queued) {
    const shown = this.#all ? jobs : jobs.slice(0, FEW);
    const hidden = Math.max(queued, jobs.length) - shown.length;
    say(byId("waiting-count"), queued > 0 ? whole(queued) : "");
    this.#empty.hidden = shown.length > 0;
    this.#table.hidden = shown.length === 0;
    list(this.#body, shown, (job) => job.number, row, () => {});
    this.#more.hidden = jobs.length <= FEW && hidden <= 0;
    this.#more.disabled = this.#all && jobs.length <= FEW;
    if (this.#all) say(this.#more, hidden > 0 ? `Show fewer; ${whole(hidden)} more wait` : "Show fewer");
    else say(this.#more, `Show ${count(hidden, "more job")}`);
  }
}

function row(job) {
  const began = job.attempts > 0 ? el("span", { class: "muted" }, " goes on after a crash") : null;
  return el("tr", { role: "row", "data-job": job.number },
    cell({ class: "number" }, String(job.number)),
    cell({ class: "op" }, operator(job.request)),
    cell({ class: "paths" }, files(job), began),
    cell({ class: "time", "data-label": "waits for" }, since(job.created)),
    cell({ class: "act" }, cancelButton(job, byId("waiting-title"))));
}
