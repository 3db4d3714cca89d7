// Requests to the service, with its token. The token stays in this tab: sessionStorage.

const KEY = "distscan-token";

/** Whether this tab has a token. */
export const hasToken = () => sessionStorage.getItem(KEY) !== null;

/** Keep a token for this tab. */
export const keepToken = (text) => sessionStorage.setItem(KEY, text.trim());

/** Forget the token. */
export const forgetToken = () => sessionStorage.removeItem(KEY);

/** The service has refused a request. */
export class Refused extends Error {}

/** The service has refused the token, or there is none. */
export class Locked extends Refused {}

/** Send a request; return the answer, or raise `Refused`. A token that is refused is forgotten. */
export async function ask(path, given = {}) {
  const headers = { "distscan-protocol": "1" };
  const token = sessionStorage.getItem(KEY);
  if (/[^\x20-\x7e]/.test(token)) refuse(token); // a header cannot have it
  if (token !== null) headers.authorization = `Bearer ${token}`;
  const url = new URL(path, document.baseURI);
  const answer = await fetch(url, { cache: "no-store", credentials: "omit", headers, ...given });
  if (answer.ok) return answer;
  if (answer.status === 401) refuse(token);
  const said = await answer.json().catch(() => null);
  throw new Refused(said?.error?.message ?? `the answer is ${answer.status}`);
}

function refuse(token) {
  if (sessionStorage.getItem(KEY) === token) forgetToken();
  throw new Locked(token === null ? "" : "The service refuses this token.");
}
