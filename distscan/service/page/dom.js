// Elements of the page. All text becomes text nodes: names of files may be hostile.

/** Return the element of the page that has an id. */
export const byId = (id) => document.getElementById(id);

/**
 * Return a new element. `given` are its attributes; `class` may be a list, false and null are left
 * out. Children are elements or text.
 */
export function el(tag, given = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(given)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value !== false && value !== null && value !== undefined) {
      made.setAttribute(name, value === true ? "" : String(value));
    }
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Set the text of an element, if it is another one: a reader on a screen would hear it again. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Return a cell of a table. The role says what it is where CSS lays the table out as a list. */
export const cell = (given, ...children) => el("td", { role: "cell", ...given }, ...children);

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
  const before = (parent.shown ??= new Map());
  const after = new Map();
  for (const item of items) {
    const shown = before.get(key(item)) ?? { child: make(item), item: null };
    if (shown.item !== item) update(shown.child, item);
    shown.item = item;
    after.set(key(item), shown);
  }
  for (const [name, { child }] of before) if (!after.has(name)) child.remove();
  let place = null;
  for (const { child } of [...after.values()].reverse()) {
    if (child.parentNode !== parent || child.nextSibling !== place) parent.insertBefore(child, place);
    place = child;
  }
  parent.shown = after;
}
