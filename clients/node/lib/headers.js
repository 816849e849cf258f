// The headers that tarry reads and writes, and those that it removes. docs/contract.md explains each.

export const ID = "tarry-id";
export const ROUND = "tarry-round";
export const COUNT = "tarry-count";
export const MOST = "tarry-max-retries";
export const DUE = "tarry-due-ms";
export const SINCE = "tarry-since-ms";
export const DEADLINE = "tarry-deadline-ms";
export const QUEUE = "tarry-queue";
export const VIA = "tarry-via";
export const USER_ID = "tarry-user-id";
export const OWNER = "owner";

const STALE = new Set([
  ...["error_reason", "error_type", "error_class", "retry_after_ms", "next_retry_at_ms", "review_reason"],
  ...["original_queue", "original_exchange", "original_routing_key"],
  ...["x-death", "x-delivery-count", "x-acquired-count", "CC", "BCC"],
]);

/** Headers of an earlier failure, and those that belong to the broker. */
export function isStale(name) {
  return STALE.has(name) || name.startsWith("x-first-death-") || name.startsWith("x-last-death-");
}

/** Headers that the application did not set. */
export function isAdded(name) {
  return name.startsWith("tarry-") || name.startsWith("x-");
}
