// What the page knows of the service: its state, its jobs, and what it has done of late.

const ENDED = ["done", "failed", "cancelled"];
const MOST_ENDED = 1000; // jobs that have ended: a page that is open for weeks must not grow
const MOST_TIMES = 200; // jobs whose times are known
const MOST_SCANS = 200;
const MOST_SAMPLES = 1800; // one hour

export const hasEnded = (job) => ENDED.includes(job.state);

export class Model {
  about = null;
  status = "ok";
  queued = 0;
  /** Jobs by their numbers. A job that changes is another object. One that runs has a `share`. */
  jobs = new Map();
  /** The times of jobs on each rank, by their numbers, and those of the job that runs or null. */
  times = new Map();
  runningTimes = null;
  /** Scans of arrays that have ended, and samples of the load; the oldest first. */
  scans = [];
  samples = [];
  arraysWaiting = 0;
  #last = 0; // the number of the newest entry of the activity that the page knows
  #ahead = 0; // seconds by which the clock of the service is ahead of this one
  #most = MOST_ENDED;
  #oldest = Infinity; // the number of the oldest job of the list; jobs by links may be older

  /** Take an event; return what is to be said of it, if anything. */
  apply(name, data) {
    if (name === "snapshot") {
      this.about = data.about;
      this.#ahead = data.now - Date.now() / 1000;
      this.#most = MOST_ENDED;
      const before = this.jobs;
      this.jobs = new Map(data.jobs.map((job) => [job.number, withShare(job, before.get(job.number))]));
      this.#oldest = Math.min(Infinity, ...data.jobs.filter(hasEnded).map((job) => job.number));
      this.#forgetActivity();
    }
    if (name === "snapshot" || name === "service") {
      this.status = data.status;
      this.queued = data.queued;
    }
    if (name === "progress") {
      const job = this.jobs.get(data.number);
      if (job) this.jobs.set(data.number, withShare({ ...job, progress: data.progress }, job));
    }
    return name === "job" ? this.#change(data) : "";
  }

  #change(job) {
    const before = this.jobs.get(job.number);
    this.jobs.set(job.number, withShare(job, before));
    this.#oldest = Math.min(this.#oldest, job.number);
    if (this.jobs.size > this.#most) {
      for (const { number } of this.ended().slice(this.#most)) this.jobs.delete(number);
      this.#oldest = Math.min(...this.jobs.keys());
    }
    return before?.state === job.state ? "" : `Job ${job.number}: ${job.state}`;
  }

  /** Take jobs that are older than those of the list. */
  addOlder(jobs) {
    for (const job of jobs) this.addLinked(job);
    this.#most += jobs.length;
    this.#oldest = Math.min(this.#oldest, ...jobs.map((job) => job.number));
  }

  /** Take a job that the user has a link to. */
  addLinked(job) {
    if (!this.jobs.has(job.number)) this.jobs.set(job.number, withShare(job));
  }

  /** The number of the oldest job of the list; infinite if there is none. */
  get oldest() {
    return this.#oldest;
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
    const jobs = [...this.jobs.values()].filter((job) => job.state === "queued");
    return jobs.sort((one, other) => one.number - other.number);
  }

  /** The jobs that have ended, the newest first. */
  ended() {
    return [...this.jobs.values()].filter(hasEnded).sort((one, other) => other.number - one.number);
  }

  // ---- the activity -----------------------------------------------------------------------------

  /** The path of the request for what is new. */
  activityPath() {
    return `v1/activity?after=${this.#last}`;
  }

  /** Take its answer, unless another snapshot has come since it was asked for at `path`. */
  addActivity(path, { last, running, jobs, scans, samples, arrays_waiting: waiting }) {
    if (path !== this.activityPath()) return;
    this.#last = last;
    this.runningTimes = running;
    this.arraysWaiting = waiting;
    for (const job of jobs) {
      this.times.delete(job.number);
      this.times.set(job.number, job);
    }
    for (const number of [...this.times.keys()].slice(0, -MOST_TIMES)) this.times.delete(number);
    this.scans = [...this.scans, ...scans].slice(-MOST_SCANS);
    this.samples = [...this.samples, ...samples].slice(-MOST_SAMPLES);
  }

  #forgetActivity() {
    [this.#last, this.runningTimes, this.scans, this.samples] = [0, null, [], []];
    this.times.clear();
  }
}

/** Return a job with its share, which never becomes less during a run. */
function withShare(job, before) {
  if (job.state !== "running") return job;
  const same = before?.state === "running" && before.attempts === job.attempts;
  return { ...job, share: Math.max(same ? before.share : 0, job.progress?.share ?? 0) };
}

/** How fast something grows: by its values of the last seconds. */
export class Speed {
  #what = "";
  #samples = [];

  /** Note a value at a time in seconds; what has another name begins anew. */
  note(what, value, now) {
    if (what !== this.#what) [this.#what, this.#samples] = [what, []];
    if (this.#samples.at(-1)?.value === value) return;
    this.#samples.push({ now, value });
    while (this.#samples.length > 2 && now - this.#samples[0].now > 8) this.#samples.shift();
  }

  /** The growth in a second; null if it is not known yet. What stands still becomes slow. */
  rate(now) {
    const [first, last] = [this.#samples[0], this.#samples.at(-1)];
    const time = first ? Math.max(last.now, now - 1) - first.now : 0;
    return time < 0.2 ? null : (last.value - first.value) / time;
  }
}
