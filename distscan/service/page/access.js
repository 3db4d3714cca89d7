// Requests to the service, with its token. The token stays in this tab: sessionStorage.

const KEY = "distscan-token";

/** Whether this tab has a token. */
export const hasToken = () => sessionStorage.getItem(KEY) !== null;

/** Keep a token for this tab. */
export const keepToken = (text) => sessionStorage.setItem(KEY, text.trim());

/** Forget the token. */
export const forgetToken = () => sessionStorage.removeItem(KEY);

/** What the service has refused: the status of HTTP, the name of the exception, and its text. */
export class Refused extends Error {
  constructor(status, type, message) {
    super(message);
    this.status = status;
    this.type = type;
  }
}

/** Send a request; return the answer, or raise `Refused`. */
export async function ask(path, given = {}) {
  const headers = { "distscan-protocol": "1" };
  const token = sessionStorage.getItem(KEY);
  if (token !== null) {
    if (!/^[\x20-\x7e]*$/.test(token)) throw new Refused(401, "UnauthorizedError", "no such token");
    headers.authorization = `Bearer ${token}`;
  }
  const url = new URL(path, document.baseURI);
  const answer = await fetch(url, { cache: "no-store", credentials: "omit", headers, ...given });
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => null);
  const { type, message } = said?.error ?? { message: `the answer is ${answer.status}` };
  throw new Refused(answer.status, type ?? "Error", message);
}
