// What the service is: its ranks, and where they are.

import { byId, el, say } from "./dom.js";
import { count, visible, whole } from "./format.js";

/** Show what the service says of itself. */
export function showRanks(about) {
  const { ranks, nodes, backend, version } = about;
  say(byId("ranks-count"), whole(ranks));
  say(byId("facts"), `${count(ranks, "rank")} on ${count(nodes, "node")} · ${backend === "cuda" ? "GPU" : "CPU"} · ${version}`);
  const rows = hosts(about.placement).map(({ host, devices }) =>
    el("li", {}, el("strong", {}, visible(host)),
      el("ul", {}, ...devices.map(({ device, first, last }) =>
        el("li", {}, el("span", { class: "muted" }, first === last ? `rank ${first}` : `ranks ${first}–${last}`),
          el("span", {}, visible(device)))))));
  byId("ranks").replaceChildren(el("ul", { class: "hosts" }, ...rows));
}

/** Return the hosts, each with its devices; neighbours of one kind are one entry. */
function hosts(placement) {
  const found = new Map();
  placement.forEach(({ host, device }, rank) => {
    if (!found.has(host)) found.set(host, []);
    const devices = found.get(host);
    const last = devices.at(-1);
    if (last?.device === device && last.last === rank - 1) last.last = rank;
    else devices.push({ device, first: rank, last: rank });
  });
  return [...found].map(([host, devices]) => ({ host, devices }));
}
