// Errors that a handler throws to say more than "it failed".

/** A rate limit: retry later. With `retryAfter` (seconds, or a Date) the retry waits that long and spends no attempt. */
export class RateLimited extends Error {
  constructor(reason = "rate limited", { retryAfter, ...about } = {}) {
    super(reason, about);
    this.name = "RateLimited";
    this.retryAfter = retryAfter;
  }
}

/** No retry would help. The message goes to review at once, with this reason. */
export class Final extends Error {
  constructor(reason, about) {
    super(reason, about);
    this.name = "Final";
  }
}

/** The wait in whole milliseconds, rounded up; undefined if there is no wait, or if it has passed. */
export function waitMs(wait, nowMs) {
  const ms = wait instanceof Date ? wait.getTime() - nowMs : typeof wait === "number" ? wait * 1000 : 0;
  return Number.isFinite(ms) && ms > 0 ? Math.ceil(ms) : undefined;
}
