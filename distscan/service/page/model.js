// What the page knows of the service: its state, and its jobs.

const ENDED = ["done", "failed", "cancelled"];
const KEPT = 1000; // jobs that have ended: a page that is open for weeks must not grow

const hasEnded = (job) => ENDED.includes(job.state);

export class Model {
  about = null;
  status = "ok";
  queued = 0;
  /** Jobs by their numbers. A job that changes is another object. */
  jobs = new Map();
  #ahead = 0; // seconds by which the clock of the service is ahead of this one
  #kept = KEPT;

  /** Take an event; return what is to be said of it, if anything. */
  apply(name, data) {
    if (name === "snapshot") {
      this.about = data.about;
      this.#ahead = data.now - Date.now() / 1000;
      this.jobs = new Map(data.jobs.map((job) => [job.number, job]));
      this.#kept = KEPT;
    }
    if (name === "snapshot" || name === "service") {
      this.status = data.status;
      this.queued = data.queued;
    }
    if (name === "progress") {
      const job = this.jobs.get(data.number);
      if (job) this.jobs.set(data.number, { ...job, progress: data.progress });
    }
    return name === "job" ? this.#change(data) : "";
  }

  #change(job) {
    const before = this.jobs.get(job.number);
    this.jobs.set(job.number, job);
    if (this.jobs.size > this.#kept) {
      for (const { number } of this.ended().slice(this.#kept)) this.jobs.delete(number);
    }
    return before?.state === job.state ? "" : `Job ${job.number}: ${job.state}`;
  }

  /** Take jobs that are older than those of the snapshot. */
  addOlder(jobs) {
    for (const job of jobs) if (!this.jobs.has(job.number)) this.jobs.set(job.number, job);
    this.#kept += jobs.length;
  }

  /** The time of the service's clock, in seconds since 1970. */
  now() {
    return Date.now() / 1000 + this.#ahead;
  }

  /** The job that runs, or undefined. */
  running() {
    return [...this.jobs.values()].find((job) => job.state === "running");
  }

  /** The jobs that wait, in the order in which they will run. */
  waiting() {
    const found = [...this.jobs.values()].filter((job) => job.state === "queued");
    return found.sort((one, other) => one.number - other.number);
  }

  /** The jobs that have ended, the newest first. */
  ended() {
    const found = [...this.jobs.values()].filter(hasEnded);
    return found.sort((one, other) => other.number - one.number);
  }
}
