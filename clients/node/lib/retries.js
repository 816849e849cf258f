// The consumer's side: settles each delivery, in the order publish, confirm, acknowledge.
import { setTimeout as sleep } from "node:timers/promises";
import { attemptOf } from "./attempt.js";
import { describe, ownerOf } from "./failure.js";
import { withDefaults } from "./options.js";
import { Outcomes } from "./outcomes.js";
import { Publisher } from "./publisher.js";
import { requestOf } from "./request.js";

/**
 * Acknowledges messages that succeeded. For a message that failed, requests a retry and then acknowledges it.
 *
 * Publishes on its own channels, on the same connection unless `publishing` is given.
 */
export class Retries {
  #options;
  #publisher;
  #outcomes;
  #running = new Set();
  #closed = new WeakMap(); // whether a channel of the user's is closed
  #isClosing = false;

  constructor(connection, options = {}, { publishing = connection } = {}) {
    this.#options = withDefaults(options);
    this.#publisher = new Publisher(publishing, this.#options.prefix);
    this.#outcomes = new Outcomes(this.#options, () => this.#flushSoon(), () => this.#inBackground(this.flush()));
  }

  /** A callback for `channel.consume`. The handler neither acknowledges nor rejects: it returns, or it throws. */
  handler(channel, queue, handle) {
    this.#watch(channel);
    return (message) => {
      if (message === null) {
        this.#options.log.warn(`tarry: the broker cancelled the consumer of ${queue}`);
        return undefined;
      }
      // The broker delivers what is not settled again, once the channel is closed.
      return this.#isClosing ? undefined : this.#inBackground(this.#handle(channel, queue, message, handle));
    };
  }

  /** Reports that an attempt begins, if the message was retried before. `handler` calls it. */
  started(queue, message) {
    this.#outcomes.start(message.properties.headers, queue);
  }

  /** Acknowledges the message and, if it was retried before, reports the success. */
  succeeded(channel, queue, message, seconds = 0) {
    if (this.#settle(queue, () => channel.ack(message))) {
      this.#outcomes.add(message.properties.headers, queue, seconds);
    } else {
      this.#outcomes.end(message.properties.headers, queue);
    }
  }

  /**
   * Requests a retry, and acknowledges the message once the broker has confirmed the request.
   *
   * With `plain: "reject"`, a failure without class and wait is rejected instead. If the request cannot be published,
   * the message is requeued.
   */
  async failed(channel, queue, message, error) {
    this.#watch(channel);
    this.#outcomes.end(message.properties.headers, queue);
    const attempt = attemptOf(message, queue);
    const failure = describe(error, this.#options, Date.now());
    const about = `attempt ${attempt.number} at message ${attempt.messageId} of queue ${queue}`;
    this.#options.log.warn(`tarry: ${about} failed: ${failure.type}: ${failure.reason}`);
    const { errorClass, retryAfterMs } = failure.verdict;
    if (this.#options.plain === "reject" && !errorClass && !retryAfterMs) {
      this.#settle(queue, () => channel.nack(message, false, false));
      return;
    }
    const owner = ownerOf(this.#options, message.properties.headers ?? {}, message.content);
    const request = requestOf({ message, queue, attempt }, failure, owner, this.#publisher.frameMax);
    await this.#ask(channel, queue, message, request);
  }

  /** Sends the pending reports now. Problems are logged, not thrown. */
  async flush() {
    const report = this.#outcomes.take();
    if (!report) return;
    try {
      await this.#publisher.report(report);
    } catch (error) {
      this.#options.log.warn(`tarry: some starts or successes could not be reported: ${error.message}`);
    }
  }

  /** Waits for the handlers that are running, sends the pending reports and closes its own channels. */
  async close() {
    this.#isClosing = true;
    while (this.#running.size) await Promise.all(this.#running);
    this.#outcomes.forgetStarts();
    await this.flush();
    await this.#publisher.close();
  }

  async #handle(channel, queue, message, handle) {
    this.started(queue, message);
    const started = performance.now();
    try {
      await handle(message, attemptOf(message, queue));
    } catch (error) {
      await this.failed(channel, queue, message, error);
      return;
    }
    this.succeeded(channel, queue, message, (performance.now() - started) / 1000);
  }

  async #ask(channel, queue, message, request) {
    for (const pause of [...this.#options.pauses, undefined]) {
      if (this.#closed.get(channel)) {
        this.#unsettled(queue, "its channel is closed"); // a request now would be a duplicate
        return;
      }
      try {
        await this.#publisher.request(message.content, request);
        this.#settle(queue, () => channel.ack(message));
        return;
      } catch (problem) {
        if (pause === undefined) this.#requeue(channel, queue, message, problem);
        else await sleep(pause * 1000);
      }
    }
  }

  #requeue(channel, queue, message, problem) {
    const about = `the retry request for message ${message.properties.messageId} of queue ${queue}`;
    this.#options.log.error(`tarry: ${about} could not be published, the message is requeued: ${problem.message}`);
    this.#settle(queue, () => channel.nack(message, false, true));
  }

  /** Settles the message. If that fails, the channel is closed and the broker delivers the message again. */
  #settle(queue, settling) {
    try {
      settling();
      return true;
    } catch (error) {
      this.#unsettled(queue, error.message);
      return false;
    }
  }

  #unsettled(queue, why) {
    this.#options.log.warn(`tarry: a message of queue ${queue} was not settled and will be delivered again: ${why}`);
  }

  #watch(channel) {
    if (this.#closed.has(channel)) return;
    this.#closed.set(channel, false);
    channel.once("close", () => this.#closed.set(channel, true));
  }

  #flushSoon() {
    setTimeout(() => this.#inBackground(this.flush()), this.#options.reportSeconds * 1000).unref();
  }

  #inBackground(promise) {
    const running = promise
      .catch((error) => this.#options.log.error("tarry:", error))
      .finally(() => this.#running.delete(running));
    this.#running.add(running);
    return running;
  }
}
