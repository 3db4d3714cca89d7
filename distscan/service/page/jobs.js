// The job that runs and those that wait; and what all lists of jobs show of one.

import { byId, cell, el, fault, list, say, since, table } from "./dom.js";
import { bytes, count, folder, lastPart, rate, seconds, visible, whole } from "./format.js";
import { Speed } from "./model.js";
import { ask } from "./service.js";

// ---- a job in short ---------------------------------------------------------------------------

const FLAGS = ["exclusive", "reverse", "check", "force", "like", "resume", "trust_input"];
const VALUES = ["dtype", "axis", "initial", "raw", "segments", "state", "strategy", "backend",
  "threads", "memory", "shape", "nulls", "trace", "window"];
const DEFAULT = { strategy: "auto", backend: "auto", nulls: "refuse" };

/** Return the options of a request that are not the defaults, as text. */
export function options(request) {
  const flags = FLAGS.filter((name) => request[name]);
  const values = VALUES.filter((name) => (request[name] ?? null) !== null)
    .filter((name) => request[name] !== DEFAULT[name])
    .map((name) => `${name}=${request[name]}`);
  return visible([...flags, ...values].join(", "));
}

/** Return an element with a path, which is cut if it is long. Its folder is left out where it is `known`. */
function file(path, known = "") {
  const parent = folder(path) === known ? null : el("span", { class: "folder" }, folder(path));
  return el("bdi", { title: visible(path) }, parent, el("span", { class: "last" }, lastPart(path)));
}

/** Return an element with the first input and the output of a job. */
export function files({ request: { inputs, output }, input_count: inputCount }) {
  const more = inputCount > 1 ? el("span", { class: "muted" }, ` and ${whole(inputCount - 1)} more`) : null;
  const arrow = el("span", { class: "arrow", role: "img", "aria-label": "to" }, "→");
  return el("span", { class: "files" }, file(inputs[0]), more, " ",
    el("span", { class: "target" }, arrow, file(output, folder(inputs[0]))));
}

/** Return an element with the operator of a job. */
export function operator(request) {
  const marks = ["exclusive", "reverse"].filter((name) => request[name]).join(", ");
  return el("span", { class: "operator" }, visible(request.op ?? "sum"),
    marks ? el("span", { class: "muted" }, ` ${marks}`) : null);
}

/** Return an element with the state of a job: a sign, and the word. */
export const badge = (state) => el("span", { class: `badge ${state}` }, state);

/** Return the address of a job in this page, and a link to it. */
export const hashOf = (number) => `#job-${number}`;
export const link = (number, text) => el("a", { href: hashOf(number) }, text);

// ---- buttons that cancel jobs -----------------------------------------------------------------

/**
 * Return a button that cancels a job. `home` gets the focus when the button goes with its job, and
 * no other button of its kind is there.
 */
function cancelButton(job, home) {
  const label = `Cancel job ${job.number}`;
  const button = el("button", { type: "button", class: "cancel", "aria-label": label }, "Cancel");
  button.addEventListener("click", async () => {
    if (job.state === "running" && !(await isSure(job))) {
      if (!button.isConnected) home.focus(); // the job has ended meanwhile
      return;
    }
    const next = nextFocus(button, home);
    button.disabled = true;
    say(button, "Cancelling");
    next.focus();
    try {
      await ask(`v1/jobs/${job.number}`, { method: "DELETE" });
    } catch (error) {
      fault(`Job ${job.number} is not cancelled: ${error.message}`);
      button.disabled = false;
      say(button, "Cancel");
    }
  });
  return button;
}

/** Return the button of the next job that waits, or of the one before, or `home`. */
function nextFocus(button, home) {
  const row = button.closest("tr");
  for (const other of [row?.nextElementSibling, row?.previousElementSibling]) {
    const next = other?.querySelector("button.cancel:enabled");
    if (next) return next;
  }
  return home;
}

let question = null; // of the dialog that is open: the number of its job, and what answers it

/** Close the dialog if its job has ended; `running` is the job that runs now, if any does. */
export function closeIfEnded(running) {
  if (question && question.number !== running?.number) question.end(false);
}

/** Ask whether a job that runs is to be cancelled. */
function isSure(job) {
  const [dialog, yes, no] = [byId("sure"), byId("sure-yes"), byId("sure-no")];
  say(byId("sure-title"), `Cancel job ${job.number}?`);
  say(byId("sure-text"), "It runs. What it has written is lost.");
  dialog.showModal();
  no.focus();
  return new Promise((answer) => {
    const end = (sure) => {
      question = null;
      dialog.close();
      answer(sure);
    };
    question = { number: job.number, end };
    yes.onclick = () => end(true);
    no.onclick = () => end(false);
    dialog.oncancel = () => end(false); // the key Escape
  });
}

// ---- the job that runs ------------------------------------------------------------------------

const PHASES = {
  start: "starts",
  resume: "reads again what a killed job has read",
  window: "finds the range of all elements",
  scan: "scans",
  write: "waits until the output is on the disk",
  check: "checks the result",
  encode: "encodes the output",
  upload: "uploads the output",
};

/** Return how much of a job is done as text. One that runs is not at its end. */
export const percent = (share) => `${Math.min(99, Math.floor(100 * share))} %`;

export class Running {
  #parent = byId("running");
  #key = null;
  #fields = {};
  #speeds = { bytes: new Speed(), share: new Speed() };

  /** Show a job, or that there is none. */
  show(job, now) {
    const key = job ? `${job.number} ${job.attempts}` : "";
    if (key !== this.#key) {
      this.#key = key;
      this.#parent.replaceChildren(job ? this.#make(job) : idle());
    }
    if (job?.progress) this.#update(job, now);
  }

  #make(job) {
    const fact = (name, label) => {
      this.#fields[name] = el("dd", {}, "–");
      return el("div", {}, el("dt", {}, label), this.#fields[name]);
    };
    this.#fields = {
      bar: el("progress", { max: 1, value: 0, "aria-label": `Progress of job ${job.number}` }),
      part: el("strong", { class: "part" }, ""),
    };
    const extra = options(job.request);
    return el("article", { "data-job": job.number, tabindex: -1, "aria-label": `Job ${job.number}` },
      el("div", { class: "bar" },
        el("p", { class: "what" }, el("strong", {}, link(job.number, `Job ${job.number}`)), badge("running"),
          operator(job.request)),
        cancelButton(job, byId("running-title"))),
      el("p", { class: "paths" }, files(job)),
      extra ? el("p", { class: "muted small" }, extra) : null,
      el("div", { class: "meter" }, this.#fields.bar, this.#fields.part),
      el("dl", { class: "facts" },
        fact("left", "Time left"), fact("phase", "Phase"), fact("done", "Bytes in this phase"), fact("rate", "Rate"),
        el("div", {}, el("dt", {}, "Runs for"), el("dd", {}, since(job.started))),
        job.attempts > 1 ? el("div", {}, el("dt", {}, "Begun"), el("dd", {}, `${job.attempts} times`)) : null));
  }

  #update(job, now) {
    const { share, progress: { phase, done, size } } = job;
    const { bytes: byteSpeed, share: shareSpeed } = this.#speeds;
    byteSpeed.note(`${this.#key} ${phase}`, done, now);
    shareSpeed.note(this.#key, share, now);
    this.#fields.bar.value = share;
    say(this.#fields.part, percent(share));
    say(this.#fields.phase, PHASES[phase] ?? phase);
    say(this.#fields.done, size > 0 ? `${bytes(done)} of ${bytes(size)}` : "–");
    const fast = size > 0 ? byteSpeed.rate(now) : null;
    say(this.#fields.rate, fast === null ? "–" : rate(fast));
    const left = shareSpeed.rate(now) > 0 ? (1 - share) / shareSpeed.rate(now) : null;
    say(this.#fields.left, left === null ? "–" : left < 1 ? "under 1 s" : seconds(Math.ceil(left)).replace(".0", ""));
  }
}

/** Return what is shown when no job runs. */
function idle() {
  return el("p", { class: "empty" }, "No job runs. Submit one, here or in a terminal:",
    el("code", {}, "python -m distscan submit input.npy"));
}

// ---- the jobs that wait, in the order in which they will run ----------------------------------

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
    const rows = this.#all ? jobs : jobs.slice(0, FEW);
    const hidden = Math.max(queued, jobs.length) - rows.length;
    say(byId("waiting-count"), queued > 0 ? whole(queued) : "");
    this.#empty.hidden = rows.length > 0;
    this.#table.hidden = rows.length === 0;
    list(this.#body, rows, (job) => job.number, waitingRow, () => {});
    this.#more.hidden = jobs.length <= FEW && hidden <= 0;
    this.#more.disabled = this.#all && jobs.length <= FEW;
    if (this.#all) say(this.#more, hidden > 0 ? `Show fewer; ${whole(hidden)} more wait` : "Show fewer");
    else say(this.#more, `Show ${count(hidden, "more job")}`);
  }

  /** Let a job be among those that are shown. */
  reveal(number, jobs) {
    this.#all ||= jobs.slice(FEW).some((job) => job.number === number);
  }
}

function waitingRow(job) {
  const again = job.attempts > 0 ? el("span", { class: "muted" }, " goes on after a crash") : null;
  return el("tr", { role: "row", "data-job": job.number, tabindex: -1 },
    cell({ class: "number" }, link(job.number, String(job.number))),
    cell({ class: "op" }, operator(job.request)),
    cell({ class: "paths" }, files(job), again),
    cell({ class: "time", "data-label": "waits for" }, since(job.created)),
    cell({ class: "act" }, cancelButton(job, byId("waiting-title"))));
}
