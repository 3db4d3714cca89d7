// The time of a job that has ended, as a bar: it waited, then its phases.

import { el } from "./dom.js";
import { seconds } from "./format.js";

/** The parts of a bar, in their order, and what each is. */
const PHASES = [
  ["waited", "waited for its turn"],
  ["start", "start, until the first chunk is read"],
  ["read", "read the input"],
  ["copy_in", "copy to the GPU"],
  ["reduce", "reduce to totals"],
  ["exscan", "exchange of totals between ranks"],
  ["scan", "scan"],
  ["copy_out", "copy from the GPU"],
  ["write", "write the output"],
  ["check", "check the result"],
];

/** Return the name of a phase as text. */
export const phaseName = (phase) => phase.replace("_", " ");

/** Return the seconds that a job waited and ran; null is not known. */
export function times({ created, started, ended }) {
  const ran = started === null || ended === null ? null : Math.max(0, ended - started);
  return { waited: Math.max(0, (started ?? ended) - created), ran };
}

/** Return the parts of a job's bar: each a phase, its seconds, and its share of the bar. */
function parts(job) {
  const { waited, ran } = times(job);
  const found = [["waited", waited, waited]];
  const measured = Object.entries(job.report?.seconds ?? {})
    .filter(([phase, time]) => phase !== "all" && time > 0);
  const sum = measured.reduce((all, [, time]) => all + time, 0);
  // Phases overlap: their seconds are more than those of the job. They share its part of the bar.
  for (const [phase, time] of measured) found.push([phase, time, (ran * time) / sum]);
  if (sum === 0 && ran !== null) found.push([job.state, ran, ran]);
  return found;
}

/** Return the bar of a job. */
export function timeline(job) {
  const all = parts(job);
  const { ran } = times(job);
  const text = all.map(([phase, time]) => `${phaseName(phase)} ${seconds(time)}`).join(", ");
  const label = `${ran === null ? "never ran" : `ran ${seconds(ran)}`}: ${text}`;
  const bar = el("div", { class: "timeline", role: "img", "aria-label": label, title: text });
  const sum = all.reduce((before, [, , share]) => before + share, 0);
  for (const [phase, , share] of all) {
    if (share <= 0) continue;
    const part = el("span", { class: `phase ${phase}` });
    part.style.flexGrow = String((1000 * share) / sum);
    bar.append(part);
  }
  return bar;
}

/** Return the legend of the bars. */
export function legend() {
  const items = PHASES.map(([phase, what]) => el("li", { title: what, "data-phase": phase },
    el("span", { class: `phase ${phase}`, "aria-hidden": "true" }), phaseName(phase)));
  return el("ul", { class: "legend", "aria-label": "Colours of the bars" }, ...items);
}

/** Let a legend have the phases of some jobs: without GPUs, nothing is copied to them. */
export function fit(legend, jobs) {
  const found = new Set(["waited"]);
  for (const job of jobs) {
    for (const [phase, time] of Object.entries(job.report?.seconds ?? {})) if (time > 0) found.add(phase);
  }
  for (const item of legend.children) item.hidden = !found.has(item.dataset.phase);
}
