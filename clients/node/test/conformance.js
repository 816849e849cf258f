// The conformance program: see clients/README.md for its protocol. One JSON object a line, on stdin and stdout.
import { setTimeout as sleep } from "node:timers/promises";
import { createInterface } from "node:readline";
import amqplib from "amqplib";
import { Final, MemoryDeduplicator, RateLimited, Retries, checkResponse } from "../index.js";

class ShopError extends Error {}
class CardDeclined extends ShopError {}
class ShopClosed extends ShopError {}

const ERRORS = { error: Error, shop_error: ShopError, card_declined: CardDeclined, shop_closed: ShopClosed };
const KINDS = { ShopError, CardDeclined, ShopClosed };
const QUIET = { warn() {}, error: console.error };

const waiting = new Map();
let deliveries = 0;
let consumer;

function tell(line) {
  process.stdout.write(`${JSON.stringify(line)}\n`);
}

function optionsOf(told) {
  const { classes = {}, owner_header, owner_fails, redact, redact_fails, ...rest } = told;
  const options = Object.fromEntries(Object.entries(rest).map(([name, value]) => [camel(name), value]));
  options.classes = new Map(Object.entries(classes).map(([name, entry]) => [KINDS[name], entry]));
  if (owner_header) options.owner = (headers) => headers[owner_header];
  if (owner_fails) options.owner = () => fails();
  if (redact) options.redact = (text) => text.replaceAll(new RegExp(redact, "g"), "…");
  if (redact_fails) options.redact = () => fails();
  return { ...options, log: QUIET };
}

function camel(name) {
  return name.replaceAll(/_(\w)/g, (_, letter) => letter.toUpperCase());
}

function fails() {
  throw new TypeError("a mistake in the application");
}

function raise({ kind, reason, retry_after: retryAfter, status, caused_by: causedBy, name }) {
  const about = causedBy ? { cause: caught(causedBy) } : undefined;
  if (kind === "http") checkResponse(new Response(null, { status, headers: { "Retry-After": String(retryAfter) } }));
  if (kind === "final") throw new Final(reason, about);
  if (kind === "rate_limited") throw new RateLimited(reason, { retryAfter, ...about });
  const error = new ERRORS[kind](reason, about);
  throw name ? Object.assign(error, { name }) : error;
}

function caught(failure) {
  try {
    return raise(failure);
  } catch (error) {
    return error;
  }
}

/** Tells of a delivery, and does what the answer says. */
async function handle(message, attempt) {
  const number = (deliveries += 1);
  const answered = new Promise((resolve) => waiting.set(number, resolve));
  const { queue, messageId, retryId, round, retryCount, maxRetries, due, firstFailed, deadline, isLast } = attempt;
  tell({
    delivery: number,
    body: message.content.toString("base64"),
    attempt: {
      ...{ queue, round, number: attempt.number, message_id: messageId, retry_id: retryId, retry_count: retryCount },
      ...{ max_retries: maxRetries, is_last: isLast },
      ...{ due_ms: due?.getTime(), first_failed_ms: firstFailed?.getTime(), deadline_ms: deadline?.getTime() },
    },
  });
  const failure = await answered;
  if (failure) raise(failure);
}

/** Connects again when it is cut off, as a service does. */
class Consumer {
  constructor({ url, queue, prefetch, options, suppress }) {
    const guard = suppress && new MemoryDeduplicator();
    Object.assign(this, { url, queue, prefetch, options: optionsOf(options), guard });
    this.running = this.run();
  }

  async run() {
    while (!this.isStopping) {
      try {
        await this.consume();
      } catch {
        await sleep(20); // cut off
      }
    }
  }

  async consume() {
    const connection = await amqplib.connect(this.url);
    const isClosed = new Promise((resolve) => connection.once("close", resolve));
    connection.on("error", () => {});
    const channel = await connection.createChannel();
    channel.on("error", () => {});
    await channel.prefetch(this.prefetch);
    const retries = new Retries(connection, this.options);
    const once = (message, attempt) => this.guard.once(attempt, () => handle(message, attempt));
    const handler = retries.handler(channel, this.queue, this.guard ? once : handle);
    const { consumerTag } = await channel.consume(this.queue, handler);
    const isStopped = new Promise((resolve) => (this.stop = resolve));
    if (this.isStopping) this.stop();
    tell({ consuming: true });
    await Promise.race([isClosed, isStopped]);
    if (!this.isStopping) return;
    await channel.cancel(consumerTag);
    await retries.close();
    await connection.close();
  }
}

const DO = {
  consume(told) {
    consumer = new Consumer(told);
  },
  settle({ delivery, failure }) {
    waiting.get(delivery)(failure);
    waiting.delete(delivery);
  },
  async stop() {
    consumer.isStopping = true;
    consumer.stop?.();
    await consumer.running;
    tell({ stopped: true });
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { do: what, ...told } = JSON.parse(line);
  void DO[what](told);
}
process.exit(0);
