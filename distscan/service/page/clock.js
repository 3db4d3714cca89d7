// Times that go on: "waits for 12 s".

import { el, say } from "./dom.js";
import { seconds } from "./format.js";

/** Return an element that says how many seconds have passed since a moment. */
export const since = (moment) => el("span", { "data-since": moment }, "");

/** Let all these elements say it. `now` is the time of the service's clock. */
export function tick(now) {
  for (const element of document.querySelectorAll("[data-since]")) {
    const passed = now - Number(element.dataset.since);
    say(element, passed < 60 ? `${Math.max(0, Math.floor(passed))} s` : seconds(passed));
  }
}
