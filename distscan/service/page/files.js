// What a job does, in short: its operator, its options, its files.

import { el } from "./dom.js";
import { folder, lastPart, visible, whole } from "./format.js";

const FLAGS = ["exclusive", "reverse", "check", "force", "like", "resume", "trust_input"];
const VALUES = ["dtype", "axis", "initial", "raw", "segments", "state", "strategy", "backend",
  "threads", "memory", "shape", "nulls", "trace"];
const DEFAULT = { strategy: "auto", backend: "auto", nulls: "refuse" };

/** Return the options of a request that are not the defaults, as text. */
export function options(request) {
  const flags = FLAGS.filter((name) => request[name]);
  const values = VALUES.filter((name) => (request[name] ?? null) !== null)
    .filter((name) => request[name] !== DEFAULT[name])
    .map((name) => `${name}=${request[name]}`);
  return visible([...flags, ...values].join(", "));
}

/** Return an element with a path. Its folder is left out where it is `known`. */
function file(path, known = "") {
  const shown = folder(path) === known ? null : el("span", { class: "folder" }, folder(path));
  return el("bdi", { title: visible(path) }, shown, lastPart(path));
}

/** Return an element with the first input and the output of a job. */
export function files({ request: { inputs, output }, input_count: count }) {
  const more = count > 1 ? el("span", { class: "muted" }, ` and ${whole(count - 1)} more`) : null;
  return el("span", { class: "files" }, file(inputs[0]), more,
    el("span", { class: "arrow", "aria-label": "to" }, " → "), file(output, folder(inputs[0])));
}

/** Return an element with the operator of a job. */
export function operator(request) {
  const marks = ["exclusive", "reverse"].filter((name) => request[name]).join(", ");
  return el("span", { class: "operator" }, visible(request.op ?? "sum"),
    marks ? el("span", { class: "muted" }, ` ${marks}`) : null);
}

/** Return an element with the state of a job: a sign, and the word. */
export const badge = (state) => el("span", { class: `badge ${state}` }, state);
