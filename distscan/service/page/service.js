// The service as the page talks to it: requests with the token, and the stream of events.

// ---- requests: the token stays in this tab, in sessionStorage ---------------------------------

const KEY = "distscan-token";

/** Whether this tab has a token. */
export const hasToken = () => sessionStorage.getItem(KEY) !== null;

/** Keep a token for this tab. */
export const keepToken = (text) => sessionStorage.setItem(KEY, text.trim());

/** Forget the token. */
export const forgetToken = () => sessionStorage.removeItem(KEY);

/** The service has refused a request. */
class Refused extends Error {}

/** The service has refused the token, or there is none. */
class Locked extends Refused {}

/**
 * Send a request; return the answer, or raise `Refused`. A token that is refused is forgotten.
 * `options` are those of `fetch`.
 */
export async function ask(path, options = {}) {
  const headers = { "distscan-protocol": "1", ...options.headers };
  const token = sessionStorage.getItem(KEY);
  if (/[^\x20-\x7e]/.test(token)) refuse(token); // a header cannot have it
  if (token !== null) headers.authorization = `Bearer ${token}`;
  const url = new URL(path, document.baseURI);
  const answer = await fetch(url, { cache: "no-store", credentials: "omit", ...options, headers });
  if (answer.ok) return answer;
  if (answer.status === 401) refuse(token);
  const body = await answer.json().catch(() => null);
  throw new Refused(body?.error?.message ?? `the answer is ${answer.status}`);
}

function refuse(token) {
  if (sessionStorage.getItem(KEY) === token) forgetToken();
  throw new Locked(token === null ? "" : "The service refuses this token.");
}

// ---- the stream of events: its connection is made again whenever it is lost -------------------

const SILENCE = 40_000; // milliseconds without a word, heartbeats included: the connection is lost
const LONGEST = 30; // seconds until another try, at most

/** Yield the server-sent events of a body, each as its name and its data. */
export async function* events(body) {
  let rest = "";
  let name = "message";
  let data = [];
  for await (const text of pieces(body)) {
    const lines = (rest + text).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line === "" && data.length > 0) yield [name, JSON.parse(data.join("\n"))];
      if (line === "") [name, data] = ["message", []];
      else if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("data: ")) data.push(line.slice(6));
    }
  }
}

/** Yield the text of a body as it comes. A stream cannot be iterated in every browser. */
async function* pieces(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

export class Stream {
  #onEvent;
  #onState;
  #tries = 0;
  #locked = false;
  #wake = () => {};

  /**
   * `onEvent(name, data)` is called for each event. `onState(state, reason, seconds)` is told of the
   * connection: "connecting", "live", "waiting" for another try, or "locked" without a token.
   */
  constructor(onEvent, onState) {
    this.#onEvent = onEvent;
    this.#onState = onState;
    addEventListener("online", () => this.#locked || this.again());
  }

  /** Try again now. */
  again() {
    this.#tries = 0;
    this.#wake();
  }

  /** Follow the service until the page is closed. */
  async run() {
    for (;;) {
      let reason = "the connection has ended";
      this.#onState("connecting");
      try {
        await this.#follow();
      } catch (error) {
        if (error instanceof Locked) {
          this.#onState("locked", error.message);
          this.#locked = true;
          await new Promise((wake) => (this.#wake = wake));
          this.#locked = false;
          continue;
        }
        reason = error instanceof Refused ? error.message : "the service does not answer";
      }
      await this.#pause(reason);
    }
  }

  /** Hear the events of one connection. */
  async #follow() {
    const lost = new AbortController();
    let timer = setTimeout(() => lost.abort(), SILENCE);
    const alive = new TransformStream({
      transform(piece, onward) {
        clearTimeout(timer);
        timer = setTimeout(() => lost.abort(), SILENCE);
        onward.enqueue(piece);
      },
    });
    try {
      const answer = await ask("v1/events", { signal: lost.signal });
      for await (const [name, data] of events(answer.body.pipeThrough(alive))) {
        this.#onEvent(name, data);
        if (name === "snapshot") {
          this.#tries = 0;
          this.#onState("live");
        }
      }
    } finally {
      clearTimeout(timer);
      lost.abort();
    }
  }

  /** Wait before another try: 1, 2, 4, ... seconds, or until `again` is called. */
  async #pause(reason) {
    const end = Date.now() + 1000 * Math.min(2 ** this.#tries, LONGEST);
    this.#tries += 1;
    let woken = false;
    while (!woken && Date.now() < end) {
      this.#onState("waiting", reason, Math.ceil((end - Date.now()) / 1000));
      woken = await new Promise((done) => {
        const timer = setTimeout(() => done(false), Math.min(1000, end - Date.now()));
        this.#wake = () => {
          clearTimeout(timer);
          done(true);
        };
      });
    }
  }
}
