// Buttons that cancel jobs.

import { ask } from "./access.js";
import { byId, el, say } from "./dom.js";
import { fault } from "./fault.js";

/**
 * Return a button that cancels a job. `home` gets the focus when the button goes with its job, and
 * no other button of its kind is there.
 */
export function cancelButton(job, home) {
  const label = `Cancel job ${job.number}`;
  const button = el("button", { type: "button", class: "cancel", "aria-label": label }, "Cancel");
  button.addEventListener("click", async () => {
    if (job.state === "running" && !(await isSure(job))) {
      if (!button.isConnected) home.focus(); // the job has ended meanwhile
      return;
    }
    const next = nextFocus(button, home);
    button.disabled = true;
    say(button, "Cancelling");
    next.focus();
    try {
      await ask(`v1/jobs/${job.number}`, { method: "DELETE" });
    } catch (error) {
      fault(`Job ${job.number} is not cancelled: ${error.message}`);
      button.disabled = false;
      say(button, "Cancel");
    }
  });
  return button;
}

/** Return the button of the next job that waits, or of the one before, or `home`. */
function nextFocus(button, home) {
  const row = button.closest("tr");
  for (const other of [row?.nextElementSibling, row?.previousElementSibling]) {
    const found = other?.querySelector("button.cancel:enabled");
    if (found) return found;
  }
  return home;
}

let question = null; // of the dialog that is open: the number of its job, and what answers it

/** Close the dialog if its job has ended; `running` is the job that runs now, if any does. */
export function closeIfEnded(running) {
  if (question && question.number !== running?.number) question.end(false);
}

/** Ask whether a job that runs is to be cancelled. */
function isSure(job) {
  const [dialog, yes, no] = [byId("sure"), byId("sure-yes"), byId("sure-no")];
  say(byId("sure-title"), `Cancel job ${job.number}?`);
  say(byId("sure-text"), "It runs. What it has written is lost.");
  dialog.showModal();
  no.focus();
  return new Promise((answer) => {
    const end = (said) => {
      question = null;
      dialog.close();
      answer(said);
    };
    question = { number: job.number, end };
    yes.onclick = () => end(true);
    no.onclick = () => end(false);
    dialog.oncancel = () => end(false); // the key Escape
  });
}
