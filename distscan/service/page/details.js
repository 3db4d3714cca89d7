// All that is known of a job that has ended.

import { el } from "./dom.js";
import { options } from "./files.js";
import { bytes, count, moment, momentInFull, rate, seconds, visible, whole } from "./format.js";
import { phaseName, times } from "./timeline.js";

const WIDE = new Set(["Input", "Inputs", "Output", "Scanned by"]);

/** Return an element with all that is known of a job. */
export function details(job) {
  const found = el("div", { class: "details" });
  if (job.error) {
    found.append(el("div", { class: "error" }, el("strong", {}, job.error.type),
      el("pre", {}, job.error.message.split("\n").map(visible).join("\n"))));
  }
  found.append(el("dl", { class: "facts" }, ...facts(job)));
  if (job.report) found.append(phases(job.report));
  return found;
}

/** Return names of facts, and the facts. */
function facts(job) {
  const { request, report } = job;
  const { waited, ran } = times(job);
  const more = job.input_count - 1; // the page knows the first input alone
  const when = (time) => (time === null ? null : el("time", { title: momentInFull(time) }, moment(time)));
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
      el("th", { scope: "row" }, el("span", { class: `phase ${phase}`, "aria-hidden": "true" }), phaseName(phase)),
      el("td", {}, seconds(time)),
      el("td", {}, moved ? bytes(moved) : ""),
      el("td", {}, moved ? rate(moved / time) : ""),
      el("td", {}, report.bounds[phase] ?? ""));
  });
  return el("table", { class: "phases" },
    el("caption", {}, "Times of the slowest rank; phases overlap."),
    el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows));
}
