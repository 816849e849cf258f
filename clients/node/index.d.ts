import type { Channel, ChannelModel, ConsumeMessage } from "amqplib";

export type ErrorClass = "final" | "retryable" | "rate_limited";

/** The class of an error and the requested wait; without a class the policy decides. */
export interface Verdict {
  errorClass?: ErrorClass;
  retryAfterMs?: number;
}

/** An error class, or a function for errors that have to be inspected; if it returns nothing, the next entry decides. */
export type Entry = ErrorClass | ((error: any) => ErrorClass | Verdict | undefined | void);

export type Headers = Record<string, unknown>;

/** The defaults suit most consumers. */
export interface Options {
  /** The installation's prefix of names; set it only if it is not `retry.`. */
  prefix?: string;
  /** Which errors are final, retryable or rate limited, by their class or a base class of it. */
  classes?: Map<abstract new (...about: any[]) => unknown, Entry>;
  /** Whom a failed message belongs to (a user, a tenant, an organisation). A message that has an owner keeps it. */
  owner?: string | ((headers: Headers, body: Buffer) => string | null | undefined);
  /** Removes secrets from an error's text before the text leaves the process. */
  redact?: (text: string) => string;
  /** The maximum number of characters of an error's text that are sent; 1,000 by default. */
  longestReason?: number;
  /**
   * What to do with a failure that specifies neither a class nor a wait. `reject` rejects the message; it requires the
   * queue to be attached (`tarry attach`), otherwise the message is lost.
   */
  plain?: "request" | "reject";
  /** Whether successes of retried messages are reported to the audit. */
  report?: boolean;
  /** Whether attempts at retried messages that take longer than `reportSeconds` are reported as started. */
  reportStarts?: boolean;
  /** The name of this consumer in reports of starts; by default its host and process id. */
  consumer?: string;
  /** The maximum number of successes in one report. */
  reportBatch?: number;
  /** The longest time that a success waits to be reported, in seconds. */
  reportSeconds?: number;
  /** Seconds between attempts to publish a request; after the last attempt the message is requeued. */
  pauses?: readonly number[];
  /** Where problems are logged; by default `console`. */
  log?: { warn(...about: unknown[]): void; error(...about: unknown[]): void };
}

/** One delivery of a message. What is not known is undefined. */
export class Attempt {
  private constructor();
  readonly queue: string;
  readonly messageId?: string;
  /** tarry's id of the message; undefined on its first delivery. */
  readonly retryId?: string;
  /** Which pass through tarry brought it here; 0 on its first delivery. */
  readonly round: number;
  /** Retries already spent; a rate-limited round spends none. */
  readonly retryCount: number;
  readonly maxRetries?: number;
  readonly due?: Date;
  readonly firstFailed?: Date;
  /** No retry comes later than this; undefined if its policy has no `max_age`. */
  readonly deadline?: Date;
  /** 1 on the first delivery. */
  get number(): number;
  /** Whether a failure of this attempt goes to review; a rate limit is the exception. */
  get isLast(): boolean;
  /** Equal for all deliveries of this attempt, different for every other attempt; undefined if that cannot be known. */
  get key(): string | undefined;
}

export function attemptOf(message: ConsumeMessage, queue: string): Attempt;

/** No retry would help. The message goes to review at once, with this reason. */
export class Final extends Error {
  constructor(reason: string, about?: { cause?: unknown });
}

/** A rate limit: retry later. With `retryAfter` (seconds, or a Date) the retry waits that long and spends no attempt. */
export class RateLimited extends Error {
  constructor(reason?: string, about?: { retryAfter?: number | Date; cause?: unknown });
  readonly retryAfter?: number | Date;
}

/** Throws RateLimited for a response with 429 or 503, of fetch or of another HTTP client. */
export function checkResponse(response: unknown, nowMs?: number): void;

/** Remembers in memory what this process completed, up to `most` attempts; the oldest are forgotten. */
export class MemoryDeduplicator {
  constructor(most?: number);
  /** Runs the work unless it was done before; resolves to whether it ran. If it throws, it counts as not done. */
  once(attempt: Attempt, work: () => unknown): Promise<boolean>;
}

export type Handle = (message: ConsumeMessage, attempt: Attempt) => unknown;

/** Acknowledges messages that succeeded. For a message that failed, requests a retry and then acknowledges it. */
export class Retries {
  /** Publishes on its own channels, on the same connection unless `publishing` is given. */
  constructor(connection: ChannelModel, options?: Options, about?: { publishing?: ChannelModel });
  /** A callback for `channel.consume`. The handler neither acknowledges nor rejects: it returns, or it throws. */
  handler(channel: Channel, queue: string, handle: Handle): (message: ConsumeMessage | null) => Promise<void> | undefined;
  /** Reports that an attempt begins, if the message was retried before. `handler` calls it. */
  started(queue: string, message: ConsumeMessage): void;
  /** Acknowledges the message and, if it was retried before, reports the success. */
  succeeded(channel: Channel, queue: string, message: ConsumeMessage, seconds?: number): void;
  /** Requests a retry, and acknowledges the message once the broker has confirmed the request. */
  failed(channel: Channel, queue: string, message: ConsumeMessage, error: unknown): Promise<void>;
  /** Sends the pending reports now. Problems are logged, not thrown. */
  flush(): Promise<void>;
  /** Waits for the handlers that are running, sends the pending reports and closes its own channels. */
  close(): Promise<void>;
}
