// The job that runs: its phase, its bytes, its speed, the time that is left.

import { cancelButton } from "./cancel.js";
import { since } from "./clock.js";
import { byId, el, say } from "./dom.js";
import { badge, files, operator, options } from "./files.js";
import { bytes, rate, seconds } from "./format.js";
import { Speed } from "./speed.js";

const PHASES = {
  start: "starts",
  reduce: "first pass: totals",
  scan: "scans",
  check: "checks the result",
};

export class Running {
  #parent = byId("running");
  #key = null;
  #shown = {};
  #speed = new Speed();

  /** Show a job, or that there is none. */
  show(job, now) {
    const key = job ? `${job.number} ${job.attempts}` : "";
    if (key !== this.#key) {
      this.#key = key;
      this.#parent.replaceChildren(job ? this.#made(job) : idle());
    }
    if (job?.progress) this.#update(job, now);
  }

  #made(job) {
    const fact = (name, label) => {
      this.#shown[name] = el("dd", {}, "–");
      return el("div", {}, el("dt", {}, label), this.#shown[name]);
    };
    this.#shown = {
      bar: el("progress", { "aria-label": `Progress of job ${job.number}` }),
      part: el("strong", { class: "part" }, ""),
    };
    const time = el("dd", {}, since(job.started));
    const extra = options(job.request);
    return el("article", { "data-job": job.number },
      el("div", { class: "bar" },
        el("p", { class: "what" }, el("strong", {}, `Job ${job.number}`), badge("running"), operator(job.request)),
        cancelButton(job, byId("running-title"))),
      el("p", { class: "paths" }, files(job)),
      extra ? el("p", { class: "muted small" }, extra) : null,
      el("div", { class: "meter" }, this.#shown.bar, this.#shown.part),
      el("dl", { class: "facts" },
        fact("phase", "Phase"), fact("done", "Bytes"), fact("rate", "Rate"),
        fact("left", "Left in this phase"), el("div", {}, el("dt", {}, "Runs for"), time),
        job.attempts > 1 ? el("div", {}, el("dt", {}, "Begun"), el("dd", {}, `${job.attempts} times`)) : null));
  }

  #update(job, now) {
    const { phase, done, size } = job.progress;
    const { bar, part } = this.#shown;
    this.#speed.note(job, now);
    if (size > 0) {
      bar.max = size;
      bar.value = done;
    } else bar.removeAttribute("value");
    say(part, size > 0 ? `${Math.floor((100 * done) / size)} %` : "");
    say(this.#shown.phase, PHASES[phase] ?? phase);
    say(this.#shown.done, size > 0 ? `${bytes(done)} of ${bytes(size)}` : "–");
    const fast = size > 0 ? this.#speed.rate(now) : null;
    say(this.#shown.rate, fast === null ? "–" : rate(fast));
    const left = fast > 0 ? (size - done) / fast : null;
    say(this.#shown.left, left === null ? "–" : left < 1 ? "under 1 s" : seconds(Math.ceil(left)).replace(".0", ""));
  }
}

/** Return what is shown when no job runs. */
function idle() {
  return el("p", { class: "empty" }, "No job runs. Submit one:",
    el("code", {}, "python -m distscan submit input.npy"));
}
