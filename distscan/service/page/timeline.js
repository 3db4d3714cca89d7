// Charts over time: what jobs ran, when each rank was busy with what, and the load of the service.

import { byId, el, list, say, svg } from "./dom.js";
import { bytes, count, moment, rate, seconds, whole } from "./format.js";
import { hashOf } from "./jobs.js";

/** The phases of a job, and what each is. */
const PHASES = {
  start: "start, until the first chunk is read",
  read: "read the input",
  copy_in: "copy to the GPU",
  reduce: "reduce to totals",
  exscan: "exchange of totals between ranks",
  scan: "scan",
  copy_out: "copy from the GPU",
  write: "write the output",
  upload: "upload the output",
  check: "check the result",
};

/** Phases that go on at the same time have lanes of their own in the row of a rank. */
const LANES = [["start", "read"], ["copy_in"], ["reduce", "exscan", "scan", "check"], ["copy_out"], ["write", "upload"]];
const KINDS = { "job-load": "throughput of file jobs", "array-load": "throughput of arrays" };

const LANE = 6; // pixels
const GAP = 5; // between rows
const BAR = 18; // the height of a job
const LOAD = 44; // the height of a chart of the load
const AXIS = 22;
const FEW = 16; // ranks, until more are asked for

/** Return the name of a phase as text. */
export const phaseName = (phase) => phase.replace("_", " ");

/** Return a small square in the colour of a phase. */
export const swatch = (phase) => el("span", { class: `swatch ${phase}`, "aria-hidden": "true" });

// ---- a drawing: rows over an axis of time -----------------------------------------------------

class Drawing {
  #width;
  #gutter;
  #from;
  #to;
  #paths = new Map(); // by classes
  #ends = new Map(); // of the last rectangle, by class and row
  #parts = [];
  #rows = []; // for the text of what is pointed at
  #height = 0;
  #text; // names a time

  /** The times are in seconds; the drawing is as wide as its parent. */
  constructor(parent, from, to) {
    [this.#width, this.#from, this.#to] = [Math.max(200, parent.clientWidth), from, to];
    this.#gutter = this.#width < 560 ? 72 : 92;
  }

  #x(time) {
    const inside = (Math.min(Math.max(time, this.#from), this.#to) - this.#from) / (this.#to - this.#from);
    return this.#gutter + inside * (this.#width - this.#gutter - 1);
  }

  /** The seconds of a number of pixels. */
  #span(pixels) {
    return (pixels * (this.#to - this.#from)) / (this.#width - this.#gutter);
  }

  #sees(from, to) {
    return to >= this.#from && from <= this.#to;
  }

  /**
   * Begin a row of a height, with a name and perhaps a second line. `describe(time, y, near)` says
   * what is at a time, or some seconds from it.
   */
  row(height, name, second, describe) {
    const y = this.#height === 0 ? 1 : this.#height + GAP;
    this.#height = y + height;
    const middle = y + height / 2 + (second ? -2 : 4);
    this.#parts.push(svg("text", { class: "name", x: 0, y: middle }, name));
    if (second) this.#parts.push(svg("text", { class: "name", x: 0, y: middle + 13 }, second));
    this.#rows.push({ y, height, describe });
    return y;
  }

  /** Add a rectangle, at least a pixel wide; those that touch become one. */
  rect(name, from, to, y, height) {
    if (!this.#sees(from, to)) return;
    const [left, right] = [this.#x(from), Math.max(this.#x(to), this.#x(from) + 1)];
    const row = `${name} ${y}`;
    if (this.#ends.get(row) >= right) return;
    const start = Math.max(left, this.#ends.get(row) ?? 0);
    this.#ends.set(row, right);
    this.#add(name, `M${start.toFixed(1)} ${y}H${right.toFixed(1)}V${y + height}H${start.toFixed(1)}Z`);
  }

  #add(name, path) {
    this.#paths.set(name, (this.#paths.get(name) ?? "") + path);
  }

  /** Add the bar of a job, which is a link to it. Keys do not reach it: lists have the same links. */
  job({ number, state, started, ended }, now, y) {
    const end = ended ?? now;
    if (!this.#sees(started, end)) return;
    const [left, right] = [this.#x(started), this.#x(end)];
    const width = Math.max(2, right - left);
    const text = String(number);
    const bar = svg("rect", { x: left.toFixed(1), y: y + 0.5, width: width.toFixed(1), height: BAR - 1, rx: Math.min(3, width / 2) });
    const label = width > 8 + 7 * text.length
      ? svg("text", { x: left + width / 2, y: y + 13, "text-anchor": "middle" }, text) : null;
    this.#parts.push(svg("a", { class: `job ${state}`, href: hashOf(number), tabindex: -1, "aria-label": `Job ${number}` }, bar, label));
  }

  /** Add an area of steps between two heights, such as [[time, low, high], ...]; 1 is the row's height. */
  steps(name, values, y, height) {
    const level = (value) => (y + height * (1 - value)).toFixed(1);
    for (const [i, [time, low, high]] of values.entries()) {
      const begin = i === 0 ? time - 2 : values[i - 1][0];
      if (high <= low || !this.#sees(begin, time)) continue;
      const [left, right] = [this.#x(begin).toFixed(1), this.#x(time).toFixed(1)];
      this.#add(name, `M${left} ${level(low)}V${level(high)}H${right}V${level(low)}Z`);
    }
  }

  /** Add a line below a row. */
  base(y) {
    this.#add("base", `M${this.#gutter} ${y}H${this.#width}`);
  }

  /**
   * Show the drawing in its parent, in place of an earlier one. `text(time, step)` names a time,
   * `marks` are distances of marks in seconds. What is pointed at, also by keys, stays so.
   */
  show(parent, label, marks, text) {
    this.#text = text;
    const { axis, grid } = this.#axis(marks);
    const paths = [...this.#paths].map(([name, d]) => svg("path", { class: name, d }));
    if (!parent.drawing) {
      parent.append(svg("svg", { role: "img", tabindex: 0 }), el("p", { class: "readout" }, HINT));
      listen(parent);
    }
    parent.drawing = this;
    const size = { width: this.#width, height: this.#height + AXIS };
    const picture = parent.querySelector("svg");
    for (const [name, value] of Object.entries(size)) picture.setAttribute(name, value);
    picture.setAttribute("aria-label", `${label}. Arrow keys read it.`);
    picture.replaceChildren(grid, ...paths, ...this.#parts, ...axis, svg("path", { class: "cursor", d: "" }));
    if (parent.pointer) this.describe(parent);
  }

  #axis(marks) {
    const most = (this.#width - this.#gutter) / 96;
    const step = marks.find((each) => (this.#to - this.#from) / each <= most) ?? marks.at(-1);
    const axis = [];
    let lines = "";
    const offset = marks === CLOCK ? new Date(this.#to * 1000).getTimezoneOffset() * 60 : 0; // whole hours of here
    const first = Math.ceil((this.#from - offset - 1e-9) / step) * step + offset;
    for (let time = first; time <= this.#to + 1e-9; time += step) {
      const x = this.#x(time);
      lines += `M${x.toFixed(1)} 0V${this.#height}`;
      const anchor = x > this.#width - 34 ? "end" : x < this.#gutter + 30 ? "start" : "middle";
      axis.push(svg("text", { class: "name", x, y: this.#height + 15, "text-anchor": anchor }, this.#text(time, step)));
    }
    return { axis, grid: svg("path", { class: "grid", d: lines }) };
  }

  /** Say what is at the pointer of the parent. */
  describe(parent) {
    const pointer = parent.pointer;
    pointer.x = Math.min(Math.max(pointer.x, this.#gutter), this.#width - 1);
    pointer.y = Math.min(Math.max(pointer.y, 0), this.#height - 1);
    const time = this.#from + this.#span(pointer.x - this.#gutter);
    const row = this.#rows.find(({ y, height }) => pointer.y <= y + height + GAP / 2);
    const what = row.describe(time, pointer.y - row.y, this.#span(3));
    parent.querySelector(".cursor").setAttribute("d", `M${pointer.x} 0V${this.#height}`);
    say(parent.querySelector(".readout"), [this.#text(time, 1), what].filter(Boolean).join(" · "));
  }

  /** The right end of the first row. */
  get end() {
    return { x: this.#width, y: 8 };
  }
}

const KEYS = { ArrowLeft: [-6, 0], ArrowRight: [6, 0], ArrowUp: [0, -LANE], ArrowDown: [0, LANE] }; // pixels

/** Say what is at the mouse, at a finger, or where keys have led to. */
function listen(parent) {
  const [picture, readout] = [parent.querySelector("svg"), parent.querySelector(".readout")];
  const point = (event) => {
    const box = picture.getBoundingClientRect();
    readout.removeAttribute("aria-live");
    parent.pointer = { x: event.clientX - box.left, y: event.clientY - box.top };
    parent.drawing.describe(parent);
  };
  const leave = () => {
    parent.pointer = null;
    parent.querySelector(".cursor").setAttribute("d", "");
    say(readout, HINT);
  };
  picture.addEventListener("pointermove", point);
  picture.addEventListener("pointerdown", point);
  picture.addEventListener("pointerleave", leave);
  picture.addEventListener("blur", leave);
  picture.addEventListener("keydown", (event) => {
    if (!(event.key in KEYS)) return;
    event.preventDefault();
    const [right, down] = KEYS[event.key];
    const { x, y } = parent.pointer ?? parent.drawing.end;
    readout.setAttribute("aria-live", "polite");
    parent.pointer = { x: x + right, y: y + down };
    parent.drawing.describe(parent);
  });
}

const HINT = "Point at the chart to read it.";
const CLOCK = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600];
const PASSED = Array.from({ length: 36 }, (_, i) => [1, 2, 5][i % 3] * 10 ** (Math.floor(i / 3) - 5));
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const clockTime = (time, step) => (step < 60 ? moment(time).replace(/^.*, /, "") : clock.format(time * 1000));

// ---- the rows of ranks ------------------------------------------------------------------------

/** Return the lanes that some jobs use: without GPUs, nothing is copied to them. */
function lanesOf(jobs) {
  const phases = phasesOf(jobs);
  const lanes = LANES.filter((lane) => lane.some((phase) => phases.includes(phase)));
  return lanes.length > 0 ? lanes : [LANES[0], LANES[2], LANES[4]];
}

/** Return the seconds from the begin of a job to its last interval. */
const lengthOf = (times) =>
  (times.seconds ??= Math.max(0, ...times.ranks.flatMap((rank) => Object.values(rank).map((all) => all.at(-1)[1]))));

/**
 * Add a row for each of some ranks. `jobs` are times of jobs; those of `running` are of rank 0 alone,
 * until `now`.
 */
function rankRows(drawing, jobs, ranks, lanes, { running = null, now = 0 } = {}) {
  for (let rank = 0; rank < ranks; rank++) {
    const laneAt = (y) => lanes[Math.min(lanes.length - 1, Math.max(0, Math.floor(y / LANE)))];
    const describe = (time, y, near) => describeRank(jobs, rank, laneAt(y), time, near);
    const y = drawing.row(lanes.length * LANE, `rank ${rank}`, "", describe);
    if (running && rank >= running.ranks.length) drawing.rect("unknown", running.begin, now, y, lanes.length * LANE);
    for (const { begin, ranks: all } of jobs) {
      for (const [i, lane] of lanes.entries()) {
        for (const phase of lane) {
          for (const [low, high] of all[rank]?.[phase] ?? []) {
            drawing.rect(`phase ${phase}`, begin + low, begin + high, y + i * LANE, LANE - 1);
          }
        }
      }
    }
    drawing.base(y + lanes.length * LANE + GAP / 2);
  }
}

function describeRank(jobs, rank, lane, time, near) {
  for (const { number, begin, ranks } of jobs) {
    for (const phase of lane) {
      const interval = ranks[rank]?.[phase]?.find(([low, high]) => begin + low - near <= time && time <= begin + high + near);
      if (interval) return `rank ${rank}, job ${number}: ${phaseName(phase)}, ${seconds(interval[1] - interval[0])}`;
    }
  }
  return `rank ${rank}`;
}

// ---- the chart of one job ---------------------------------------------------------------------

/** Draw when each rank was busy in a job that has ended. */
export function jobChart(parent, times) {
  if (parent.drawn === times && parent.width === parent.clientWidth) return;
  [parent.drawn, parent.width] = [times, parent.clientWidth];
  const fromZero = { ...times, begin: 0 };
  const end = Math.max(lengthOf(times), 1e-5);
  const drawing = new Drawing(parent, 0, end);
  const ranks = Math.min(times.ranks.length, 4 * FEW);
  rankRows(drawing, [fromZero], ranks, lanesOf([fromZero]));
  const label = `The phases of job ${times.number} on ${count(ranks, "rank")}, over ${seconds(end)}`;
  drawing.show(parent, label, PASSED, (time) => (time < 1e-9 ? "0 s" : seconds(time)));
  if (!parent.querySelector(".legend")) parent.append(legend(phasesOf([fromZero])));
}

/** Return the phases that some jobs have, in their order. */
function phasesOf(jobs) {
  const names = new Set(jobs.flatMap(({ ranks }) => ranks.flatMap(Object.keys)));
  return Object.keys(PHASES).filter((phase) => names.has(phase));
}

function legend(phases) {
  return el("ul", { class: "legend", "aria-label": "Colours of the chart" }, ...phases.map(legendItem));
}

const legendItem = (name) => el("li", { title: PHASES[name] ?? null }, swatch(name), KINDS[name] ?? phaseName(name));

// ---- the chart of the service -----------------------------------------------------------------

/** Return the jobs that have begun; of those that are not in the lists, only the times are known. */
function knownJobs({ jobs, times }) {
  const listed = [...jobs.values()].filter(({ state, started }) => state !== "queued" && started !== null);
  const others = [...times.values()].filter(({ number }) => !jobs.has(number))
    .map((job) => ({ number: job.number, state: "", started: job.begin, ended: job.begin + lengthOf(job) }));
  return [...others, ...listed].sort((a, b) => a.started - b.started); // where bars meet, the newest is on top
}

export class Timeline {
  #model;
  #parent = byId("timeline");
  #window = byId("timeline-window");
  #legend = byId("timeline-legend");
  #more = byId("timeline-more");
  #all = false;

  constructor(model) {
    this.#model = model;
    this.#window.addEventListener("input", () => this.show());
    this.#more.addEventListener("click", () => {
      this.#all = !this.#all;
      this.show();
    });
  }

  /** Draw the chart until now. */
  show() {
    const model = this.#model;
    if (!model.about || this.#parent.clientWidth === 0) return;
    const now = model.now();
    const from = now - Number(this.#window.value);
    const running = model.running() ? model.runningTimes : null;
    const times = [...model.times.values(), ...(running ? [running] : [])]
      .filter((job) => job.begin + lengthOf(job) >= from);
    const jobs = knownJobs(model).filter((job) => (job.ended ?? now) >= from);
    const drawing = new Drawing(this.#parent, from, now);
    this.#drawJobs(drawing, jobs, now);
    const ranks = this.#all ? model.about.ranks : Math.min(FEW, model.about.ranks);
    rankRows(drawing, times, ranks, lanesOf(times), { running, now });
    this.#drawLoad(drawing, model.samples.filter((sample) => sample.time >= from - 2));
    const window = this.#window.selectedOptions[0].textContent;
    drawing.show(this.#parent, `${count(jobs.length, "job")} in the ${window}, on ${count(ranks, "rank")}`, CLOCK, clockTime);
    list(this.#legend, [...phasesOf(times), ...Object.keys(KINDS)], (name) => name, legendItem, () => {});
    this.#more.hidden = model.about.ranks <= FEW;
    say(this.#more, this.#all ? "Show fewer ranks" : `Show all ${whole(model.about.ranks)} ranks`);
  }

  #drawJobs(drawing, jobs, now) {
    const describe = (time, y, near) => {
      const job = jobs.findLast(({ started, ended }) => started - near <= time && time <= (ended ?? now) + near);
      return job ? `job ${job.number}: ${job.state || "ran"}, ${seconds((job.ended ?? now) - job.started)}` : "";
    };
    const y = drawing.row(BAR, "jobs", "", describe);
    for (const job of jobs) drawing.job(job, now, y);
    drawing.base(y + BAR + GAP / 2);
  }

  #drawLoad(drawing, samples) {
    const at = (time, text) => {
      const sample = samples.find((each) => each.time >= time && each.time - time <= 2.5);
      return sample ? text(sample) : "";
    };
    const most = Math.max(1, ...samples.map(({ jobs, arrays }) => jobs + arrays));
    let y = drawing.row(LOAD, "throughput", most > 1 ? rate(most) : "", (time) =>
      at(time, ({ jobs, arrays }) => `file jobs ${rate(jobs)}, arrays ${rate(arrays)}`));
    drawing.steps("job-load", samples.map(({ time, jobs }) => [time, 0, jobs / most]), y, LOAD);
    drawing.steps("array-load", samples.map(({ time, jobs, arrays }) => [time, jobs / most, (jobs + arrays) / most]), y, LOAD);
    drawing.base(y + LOAD);
    for (const [name, label] of [["memory", "memory"], ["gpu", "GPU memory"]]) {
      if (name === "gpu" && !samples.some((sample) => sample.gpu !== null)) continue;
      const top = Math.max(1, ...samples.map((sample) => sample[name] ?? 0));
      y = drawing.row(LOAD, label, top > 1 ? bytes(top) : "", (time) => at(time, (sample) => `${label} ${bytes(sample[name] ?? 0)}`));
      drawing.steps("memory-load", samples.map((sample) => [sample.time, 0, (sample[name] ?? 0) / top]), y, LOAD);
      drawing.base(y + LOAD);
    }
  }
}
