// The page: what the stream says goes into the model, and from there into the parts of the page.

import { forgetToken, hasToken, keepToken } from "./access.js";
import { closeIfEnded } from "./cancel.js";
import { tick } from "./clock.js";
import { byId, say } from "./dom.js";
import { moment } from "./format.js";
import { JobHistory } from "./history.js";
import { Model } from "./model.js";
import { showRanks } from "./ranks.js";
import { Running } from "./running.js";
import { Stream } from "./stream.js";
import { Waiting } from "./waiting.js";

const model = new Model();
const running = new Running();
const waiting = new Waiting(() => draw());
const history = new JobHistory(model);
const stream = new Stream(heard, showConnection);
let live = false; // whether what is shown is so now
let lost = ""; // when it was so last
let asked = false; // whether the page will be drawn before the next frame
let changed = false; // whether more than progress is not drawn yet

/** Take an event. Several are drawn at once. */
function heard(name, data) {
  const text = model.apply(name, data);
  if (text) say(byId("said"), text);
  changed ||= name !== "progress";
  if (!asked) {
    asked = true;
    requestAnimationFrame(draw);
  }
}

/** Draw what has changed. */
function draw() {
  asked = false;
  const job = model.running();
  showNotices();
  running.show(job, model.now());
  closeIfEnded(job);
  waiting.show(model.waiting(), model.queued);
  if (changed) {
    history.show();
    showRanks(model.about);
  }
  changed = false;
  document.title = title(job);
  tick(model.now());
}

/** Return the title of the page. */
function title(job) {
  if (!job) return "distscan";
  const { done, size } = job.progress ?? {};
  return `${size > 0 ? `${Math.floor((100 * done) / size)} % · ` : ""}job ${job.number} · distscan`;
}

/** Show how the connection is. */
function showConnection(state, reason = "", seconds = 0) {
  const texts = {
    connecting: "connecting",
    live: "live",
    locked: "locked",
    waiting: `reconnecting in ${seconds} s`,
  };
  const shown = byId("connection");
  say(shown, texts[state]);
  shown.className = `connection ${state}`;
  byId("again").hidden = state !== "waiting";
  byId("forget").hidden = !hasToken() || state === "locked";
  if (live && state !== "live") lost = moment(Date.now() / 1000);
  live = state === "live";
  const old = byId("jobs").hidden ? "" : `What is shown was so at ${lost}.`;
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
setInterval(() => live && draw(), 1000);
stream.run();
