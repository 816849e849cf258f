// Client library for consumers: report why a message failed, when to retry it, and that it succeeded.
export { Attempt, attemptOf } from "./lib/attempt.js";
export { checkResponse } from "./lib/hints.js";
export { Final, RateLimited } from "./lib/errors.js";
export { MemoryDeduplicator } from "./lib/deduplicator.js";
export { Retries } from "./lib/retries.js";
