// Elements of the page. All text becomes text nodes: names of files may be hostile.

import { seconds } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

/** Return the element of the page that has an id. */
export const byId = (id) => document.getElementById(id);

/** Return a new element with attributes and children. See `fill`. */
export const el = (tag, attributes = {}, ...children) =>
  fill(document.createElement(tag), attributes, children);

/** Return a new element of SVG. See `fill`. */
export const svg = (tag, attributes = {}, ...children) =>
  fill(document.createElementNS(SVG, tag), attributes, children);

/**
 * Set attributes of an element, and append children: elements or text. A function becomes a
 * listener. Attributes that are false, null or undefined are left out, and so are such children.
 */
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Set the text of an element, if it is another one: a reader on a screen would hear it again. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Return a cell of a table. The role says what it is where CSS lays the table out as a list. */
export const cell = (attributes, ...children) => el("td", { role: "cell", ...attributes }, ...children);

/** Return a table with columns of these names, without rows. A name may be an element. */
export function table(label, columns) {
  const heads = columns.map((name) => el("th", { scope: "col", role: "columnheader" }, name));
  const head = el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, ...heads));
  return el("table", { role: "table", "aria-label": label }, head);
}

/**
 * Let a parent have one child for each item, in their order. Children are made once; `update` is
 * called for a child whose item is another object than before. So the focus stays where it is.
 */
export function list(parent, items, key, make, update) {
  const before = (parent.entries ??= new Map());
  const after = new Map();
  for (const item of items) {
    const entry = before.get(key(item)) ?? { child: make(item), item: null };
    if (entry.item !== item) update(entry.child, item);
    entry.item = item;
    after.set(key(item), entry);
  }
  for (const [name, { child }] of before) if (!after.has(name)) child.remove();
  let place = null;
  for (const { child } of [...after.values()].reverse()) {
    if (child.parentNode !== parent || child.nextSibling !== place) parent.insertBefore(child, place);
    place = child;
  }
  parent.entries = after;
}

// ---- times that go on, and texts that come and go ---------------------------------------------

/** Return an element that says how many seconds have passed since a moment. */
export const since = (moment) => el("span", { "data-since": moment }, "");

/** Let all these elements say it. `now` is the time of the service's clock. */
export function tick(now) {
  for (const element of document.querySelectorAll("[data-since]")) {
    const passed = now - Number(element.dataset.since);
    say(element, passed < 60 ? `${Math.max(0, Math.floor(passed))} s` : seconds(passed));
  }
}

/** Tell those who hear the page, and do not see it. */
export const announce = (text) => say(byId("said"), text);

/** Show for a while what went wrong with something that the user has asked for; "" hides it. */
export function fault(text) {
  const notice = byId("fault");
  clearTimeout(notice.timer);
  notice.hidden = !text;
  say(notice, text);
  if (text) notice.timer = setTimeout(() => fault(""), 15_000);
}
