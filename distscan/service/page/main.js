// The page: what the service says goes into the model, and from there into the parts of the page.

import { announce, byId, el, fault, say, tick } from "./dom.js";
import { JobForm } from "./form.js";
import { count, moment, visible, whole } from "./format.js";
import { JobHistory } from "./history.js";
import { Running, Waiting, closeIfEnded, hashOf, percent } from "./jobs.js";
import { Model, hasEnded } from "./model.js";
import { ArrayScans } from "./scans.js";
import { Stream, ask, forgetToken, hasToken, keepToken } from "./service.js";
import { Timeline } from "./timeline.js";

const PERIOD = 2000; // milliseconds between two requests for what the service has done

const model = new Model();
const running = new Running();
const waiting = new Waiting(() => draw());
const form = new JobForm();
const history = new JobHistory(model, (job) => form.open(job));
const timeline = new Timeline(model);
const scans = new ArrayScans(() => drawActivity());
const stream = new Stream(takeEvent, showConnection);
const link = { number: 0, focus: false, state: "" }; // to the job of the page's address: see showLink
let live = false; // whether what is shown is so now
let lastLive = ""; // when it was so last
let drawing = false; // whether the page will be drawn before the next frame
let allNew = false; // whether more than progress is to be drawn
let jobEnded = false; // whether a job has ended since the activity was asked for
let asking = false; // whether the activity is asked for

// ---- from the service to the page -------------------------------------------------------------

/** Take an event. Several are drawn at once. */
function takeEvent(name, data) {
  const text = model.apply(name, data);
  if (text) announce(text);
  allNew ||= name !== "progress";
  jobEnded ||= name === "snapshot" || (name === "job" && hasEnded(data));
  if (!drawing) {
    drawing = true;
    requestAnimationFrame(draw);
  }
}

/** Draw what has changed. */
function draw() {
  drawing = false;
  const job = model.running();
  showNotices();
  running.show(job, model.now());
  closeIfEnded(job);
  waiting.show(model.waiting(), model.queued);
  if (allNew) {
    history.show();
    showRanks(model.about);
    showLink();
  }
  allNew = false;
  if (jobEnded) getActivity();
  document.title = title(job);
  tick(model.now());
}

/** Return the title of the page. */
function title(job) {
  if (!job) return "distscan";
  return `${percent(job.share)} · job ${job.number} · distscan`;
}

/** Ask what the service has done, and draw it. A request that fails is sent again later. */
async function getActivity() {
  if (asking) return;
  asking = true;
  jobEnded = false;
  const path = model.activityPath();
  try {
    model.addActivity(path, await (await ask(path)).json());
    drawActivity();
  } catch {
    // The stream of events says what is wrong.
  }
  asking = false;
}

function drawActivity() {
  timeline.show();
  scans.show(model.scans, model.arraysWaiting);
  history.drawCharts();
}

// ---- the job that the address of the page names -----------------------------------------------

/** Take the number of the job from the address. */
function readAddress() {
  const match = /^#job-(\d{1,15})$/.exec(location.hash);
  Object.assign(link, { number: match ? Number(match[1]) : 0, focus: true, state: "" });
  if (live) showLink();
}

/**
 * Show the job of the address, in whatever list it is. One that is in none is asked for. One that has
 * not ended is opened when it has; it gets the focus again if nothing else has it.
 */
async function showLink() {
  const { number } = link;
  if (!number) return;
  if (!model.jobs.has(number)) {
    link.number = 0;
    try {
      model.addLinked(await (await ask(`v1/jobs/${number}`)).json());
    } catch (error) {
      fault(`Job ${number} is not shown: ${error.message}`);
      return;
    }
    link.number = number;
    allNew = true;
    draw();
    return;
  }
  const job = model.jobs.get(number);
  if (job.state === link.state) return;
  link.state = job.state;
  if (hasEnded(job)) link.number = 0;
  waiting.reveal(number, model.waiting());
  waiting.show(model.waiting(), model.queued);
  const list = { queued: "waiting", running: "running" }[job.state];
  const row = list ? document.querySelector(`#${list} [data-job="${number}"]`) : history.open(number);
  if (row && (link.focus || document.activeElement === document.body)) {
    row.scrollIntoView({ block: "nearest" });
    (row.querySelector("button.open") ?? row).focus({ preventScroll: true });
    link.focus = false;
  }
}

// ---- the connection, and the token ------------------------------------------------------------

/** Show how the connection is. */
function showConnection(state, reason = "", seconds = 0) {
  const texts = {
    connecting: "connecting",
    live: "live",
    locked: "locked",
    waiting: `reconnecting in ${seconds} s`,
  };
  const sign = byId("connection");
  say(sign, texts[state]);
  sign.className = `connection ${state}`;
  byId("again").hidden = state !== "waiting";
  byId("new-open").hidden = state !== "live";
  byId("forget").hidden = !hasToken() || state === "locked";
  if (live && state !== "live") lastLive = moment(Date.now() / 1000);
  live = state === "live";
  const old = byId("jobs").hidden ? "" : `What is shown was so at ${lastLive}.`;
  if (state === "waiting") say(byId("lost"), `No connection: ${reason}. ${old}`);
  if (live || state === "locked") say(byId("lost"), "");
  if (live) showJobs(true);
  if (state === "locked") lock(reason);
  showNotices();
}

/** Show that there is no connection, or that the service ends. */
function showNotices() {
  byId("lost").hidden = byId("lost").textContent === "";
  byId("ending").hidden = !live || model.status !== "ending";
}

/** Show the jobs, or the question for the token. */
function showJobs(open) {
  const [jobs, locked] = [byId("jobs"), byId("locked")];
  if (open && !locked.hidden) byId("main").focus();
  jobs.hidden = !open;
  locked.hidden = open;
}

/** Ask for the token. */
function lock(reason) {
  say(byId("wrong"), reason);
  showJobs(false);
  byId("token").value = "";
  byId("token").focus();
}

// ---- what the service is: its ranks, and where they are ---------------------------------------

/** Show what the service says of itself. */
function showRanks(about) {
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
  const byHost = new Map();
  placement.forEach(({ host, device }, rank) => {
    if (!byHost.has(host)) byHost.set(host, []);
    const devices = byHost.get(host);
    const last = devices.at(-1);
    if (last?.device === device && last.last === rank - 1) last.last = rank;
    else devices.push({ device, first: rank, last: rank });
  });
  return [...byHost].map(([host, devices]) => ({ host, devices }));
}

// ---- the beginning ----------------------------------------------------------------------------

byId("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(byId("token").value);
  byId("token").value = "";
  stream.again();
});
byId("forget").addEventListener("click", () => {
  forgetToken();
  location.reload();
});
byId("again").addEventListener("click", () => stream.again());
addEventListener("hashchange", readAddress);
new ResizeObserver(() => live && drawActivity()).observe(byId("timeline"));
setInterval(() => live && draw(), 1000);
setInterval(() => live && !document.hidden && getActivity(), PERIOD);
document.addEventListener("visibilitychange", () => live && !document.hidden && getActivity());
readAddress();
stream.run();
