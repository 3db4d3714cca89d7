// Numbers, times and names as text.

const NUMBER = new Intl.NumberFormat("en");
const CLOCK = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const DAY = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });
const FULL = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });
const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

/** Return a whole number, such as "1,048,576". */
export const whole = (number) => NUMBER.format(number);

/** Return a count and its noun: "1 rank", "3 ranks". */
export const count = (number, noun) => `${whole(number)} ${noun}${number === 1 ? "" : "s"}`;

/** Return bytes, such as "1.23 GB", of 1000 MB, as reports of file jobs have them. */
export function bytes(number) {
  let unit = 0;
  let value = number;
  while (value >= 999.5 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  const digits = unit === 0 || value >= 100 ? 0 : value >= 10 ? 1 : 2;
  return `${value.toFixed(digits)} ${UNITS[unit]}`;
}

/** Return bytes a second. */
export const rate = (number) => `${bytes(number)}/s`;

/** Return seconds, such as "340 ms", "3.4 s", "4 min 05 s". */
export function seconds(number) {
  const value = Math.max(0, number);
  if (value < 0.0000005) return "0 s";
  if (value < 0.0009995) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 0.9995) return `${(value * 1000).toFixed(value < 0.00995 ? 1 : 0)} ms`;
  if (value < 59.95) return `${value.toFixed(1)} s`;
  const all = Math.round(value);
  const [days, hours] = [Math.floor(all / 86400), Math.floor(all / 3600) % 24];
  const minutes = Math.floor(all / 60) % 60;
  if (days > 0) return `${days} d ${hours} h`;
  if (hours > 0) return `${hours} h ${two(minutes)} min`;
  return `${minutes} min ${two(all % 60)} s`;
}

const two = (number) => String(number).padStart(2, "0");

/** Return a moment, in seconds since 1970, shortly: the day only if it is not today. */
export function moment(time) {
  const then = new Date(time * 1000);
  const today = then.toDateString() === new Date().toDateString();
  return today ? CLOCK.format(then) : `${DAY.format(then)}, ${CLOCK.format(then)}`;
}

/** Return a moment in full. */
export const momentInFull = (time) => FULL.format(new Date(time * 1000));

/**
 * Return a text of a file or a client so that nothing in it is unseen: control characters, and those
 * that turn the direction of text around, become codes.
 */
export function visible(text) {
  return String(text).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, (character) => {
    const code = character.codePointAt(0).toString(16);
    return `\\u{${code}}`;
  });
}

/** Return the number of bytes that a text such as "1.5 GiB" or "200MB" says; NaN if it says none. */
export function bytesOf(text) {
  const match = /^(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?)b?|b)?$/i.exec(text.trim());
  if (!match) return NaN;
  const power = match[2] ? "kmgt".indexOf(match[2].toLowerCase()) + 1 : 0;
  return Math.round(Number(match[1]) * (match[3] ? 1024 : 1000) ** power);
}

/** Return the last part of a path. */
export const lastPart = (path) => visible(path.slice(path.lastIndexOf("/") + 1) || path);

/** Return what stands before the last part of a path. */
export const folder = (path) => visible(path.slice(0, path.lastIndexOf("/") + 1));
