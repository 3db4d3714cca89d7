// How fast a job is: the bytes of the last seconds.

const WINDOW = 8; // seconds

export class Speed {
  #what = "";
  #samples = [];

  /** Note the progress of a job at a time in seconds. Each phase has a speed of its own. */
  note(job, now) {
    const { phase, done } = job.progress;
    const what = `${job.number} ${job.attempts} ${phase}`;
    if (what !== this.#what) [this.#what, this.#samples] = [what, []];
    const last = this.#samples.at(-1);
    if (last && last.done === done) return;
    this.#samples.push({ now, done });
    while (this.#samples.length > 2 && now - this.#samples[0].now > WINDOW) this.#samples.shift();
  }

  /** Bytes a second; null if it is not known yet. A job that stands still becomes slow. */
  rate(now) {
    const [first, last] = [this.#samples[0], this.#samples.at(-1)];
    const time = first ? Math.max(last.now, now - 1) - first.now : 0;
    return time < 0.2 ? null : (last.done - first.done) / time;
  }
}
