// Classifies errors by a table that users can extend. If the table has no entry, the rules of the policy decide.
import { Final, RateLimited, waitMs } from "./errors.js";
import { busy } from "./hints.js";

const DEEPEST = 8; // how many chained causes are examined; this limits the work for an endless chain

/** The first verdict along the chain of causes; an empty one leaves the class to the policy. */
export function judge(error, classes, nowMs) {
  let found = error;
  for (let depth = 0; depth < DEEPEST && found instanceof Error; depth += 1) {
    const verdict = lookUp(found, classes) ?? lookInto(found, nowMs);
    if (verdict) return verdict;
    found = found.cause;
  }
  return {};
}

/** The entry of the error's own class, else that of its nearest base class. */
function lookUp(error, classes) {
  for (let kind = Object.getPrototypeOf(error); kind; kind = Object.getPrototypeOf(kind)) {
    const entry = classes.get(kind.constructor);
    const found = typeof entry === "function" ? entry(error) : entry;
    if (found) return typeof found === "string" ? { errorClass: found } : found;
  }
  return undefined;
}

function lookInto(error, nowMs) {
  if (error instanceof RateLimited) {
    return { errorClass: "rate_limited", retryAfterMs: waitMs(error.retryAfter, nowMs) };
  }
  if (error instanceof Final) return { errorClass: "final" };
  const found = busy(error, nowMs);
  return found && { errorClass: "rate_limited", retryAfterMs: found.retryAfterMs };
}
