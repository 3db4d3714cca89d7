// The scans of arrays that have ended of late.

import { byId, cell, el, list, say, table } from "./dom.js";
import { count, moment, momentInFull, seconds, visible, whole } from "./format.js";
import { badge } from "./jobs.js";

const COLUMNS = ["Ended", "State", "Operator", "Elements", "Type", "Took", "Way"];
const WAYS = { shared: "shared memory", body: "HTTP" };
const FEW = 8; // rows, until more are asked for

export class ArrayScans {
  #parent = byId("scans");
  #empty = el("p", { class: "empty" }, "No array has been scanned of late.");
  #table = table("Scans of arrays", COLUMNS);
  #body = el("tbody", { role: "rowgroup" });
  #more = el("button", { type: "button", class: "quiet more" }, "");
  #all = false;

  /** `again` is called when the user asks for all scans. */
  constructor(again) {
    this.#table.append(this.#body);
    this.#parent.append(this.#empty, this.#table, this.#more);
    this.#more.addEventListener("click", () => {
      this.#all = !this.#all;
      again();
    });
  }

  /** Show the scans, of which the newest is the last; `waiting` large arrays wait or are scanned. */
  show(scans, waiting) {
    const newest = scans.slice(this.#all ? 0 : -FEW).reverse();
    say(byId("scans-count"), waiting > 0 ? `${whole(waiting)} at work` : scans.length > 0 ? whole(scans.length) : "");
    this.#empty.hidden = scans.length > 0;
    this.#table.hidden = scans.length === 0;
    list(this.#body, newest, (scan) => scan, row, () => {});
    this.#more.hidden = scans.length <= FEW;
    say(this.#more, this.#all ? "Show fewer" : `Show ${count(scans.length - FEW, "more scan")}`);
  }
}

function row({ begin, seconds: took, op, way, elements, dtype, error }) {
  const end = begin + took;
  return el("tr", { role: "row" },
    cell({ class: "time" }, el("time", { title: momentInFull(end), datetime: new Date(end * 1000).toISOString() }, moment(end))),
    cell({ class: "state" }, badge(error === null ? "done" : "failed"), error && el("span", { class: "wrong" }, ` ${error}`)),
    cell({ class: "op" }, el("span", { class: "operator" }, visible(op))),
    cell({ class: "amount" }, elements === null ? "–" : whole(elements)),
    cell({ class: "type" }, dtype === null ? "–" : visible(dtype)),
    cell({ class: "time", "data-label": "took" }, seconds(took)),
    cell({ class: "way" }, WAYS[way]));
}
