// Describes one failure: limited in size, and without anything that the redaction hook removes.
import { judge } from "./classify.js";

const LONGEST_TYPE = 200;
const LONGEST_OWNER = 255;
const NATIVE = new Set(
  "Error TypeError RangeError SyntaxError ReferenceError EvalError URIError AggregateError".split(" "),
);

/** Never throws: a redaction hook or a message that fails must not cost the message its retry. */
export function describe(error, options, nowMs) {
  return { type: typeName(error), reason: reasonOf(error, options), verdict: verdictOf(error, options, nowMs) };
}

/** `TypeError`, `AbortError`, `CardDeclined`: the name that a policy matches with a glob. */
export function typeName(error) {
  if (!(error instanceof Error)) return error === null ? "null" : typeof error;
  const isOwn = Object.hasOwn(error, "name") || !NATIVE.has(error.name);
  return String((isOwn && error.name) || error.constructor?.name || "Error").slice(-LONGEST_TYPE);
}

function reasonOf(error, { redact, longestReason }) {
  let text;
  try {
    text = String(error instanceof Error ? error.message : error);
  } catch {
    text = "(its text could not be produced)";
  }
  try {
    text = redact ? String(redact(text)) : text;
  } catch (failed) {
    text = `(its text was withheld: the redaction hook failed with ${typeName(failed)})`;
  }
  return cut(text.replaceAll("\0", "\\x00"), longestReason);
}

/** At most so many characters, of which none is half of one. */
export function cut(text, most) {
  const whole = text.replace(/[\ud800-\udfff]/gu, "\ufffd");
  if (whole.length <= most) return whole;
  const characters = [...whole];
  return characters.length <= most ? whole : `${characters.slice(0, most - 1).join("")}…`;
}

function verdictOf(error, options, nowMs) {
  try {
    return judge(error, options.classes, nowMs);
  } catch {
    return {};
  }
}

/** Whom a message belongs to, by the options. Never throws: a bad owner must not cost the message its retry. */
export function ownerOf({ owner, log }, headers, body) {
  try {
    const found = typeof owner === "function" ? owner(headers, body) : owner;
    if (found === undefined || found === null) return undefined;
    const text = String(found);
    if (text.length > LONGEST_OWNER || text.includes("\0")) {
      throw new RangeError(`an owner has up to ${LONGEST_OWNER} characters`);
    }
    return text || undefined;
  } catch (error) {
    log.error("tarry: the owner of a message could not be found, its retry request names none:", error);
    return undefined;
  }
}
