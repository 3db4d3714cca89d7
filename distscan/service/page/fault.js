// What went wrong with something that the user has asked for.

import { byId, say } from "./dom.js";

/** Show a text for a while; without one, hide it. */
export function fault(text) {
  const shown = byId("fault");
  clearTimeout(shown.timer);
  shown.hidden = !text;
  say(shown, text);
  if (text) shown.timer = setTimeout(() => fault(""), 15_000);
}
