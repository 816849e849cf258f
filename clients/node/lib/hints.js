// Reads from an HTTP response when to retry: of fetch, or as axios, got and undici attach it to their errors.
import { RateLimited, waitMs } from "./errors.js";

const BUSY = new Set([429, 503]);

/** Undefined if it is neither 429 nor 503; otherwise the status, and the wait that the server asked for, if any. */
export function busy(errorOrResponse, nowMs) {
  const response = errorOrResponse?.response ?? errorOrResponse;
  const status = response?.status ?? response?.statusCode;
  if (!BUSY.has(status)) return undefined;
  return { status, retryAfterMs: retryAfterMs(retryAfter(response.headers), nowMs) };
}

function retryAfter(headers) {
  if (!headers) return undefined;
  if (typeof headers.get === "function") return headers.get("retry-after");
  return Object.entries(headers).find(([name]) => name.toLowerCase() === "retry-after")?.[1];
}

/** `Retry-After` in either of its forms: seconds, or a date. An invalid value counts as absent. */
function retryAfterMs(value, nowMs) {
  const text = String(value ?? "").trim();
  if (text === "") return undefined;
  return Number.isNaN(Number(text)) ? waitMs(new Date(text), nowMs) : waitMs(Number(text), nowMs);
}

/** Throws RateLimited for a response with 429 or 503. */
export function checkResponse(response, nowMs = Date.now()) {
  const found = busy(response, nowMs);
  if (!found) return;
  const retryAfter = found.retryAfterMs === undefined ? undefined : found.retryAfterMs / 1000;
  throw new RateLimited(`HTTP status ${found.status}`, { retryAfter });
}
