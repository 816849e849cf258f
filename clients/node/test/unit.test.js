// What the cases of all clients do not reach. Without a broker: a connection that answers as one does.
import assert from "node:assert/strict";
import { EventEmitter } from "node:events";
import { test } from "node:test";
import { MemoryDeduplicator, RateLimited, Retries, attemptOf, checkResponse } from "../index.js";
import { typeName } from "../lib/failure.js";
import { Outcomes } from "../lib/outcomes.js";
import { requestOf } from "../lib/request.js";
import { withDefaults } from "../lib/options.js";

const ID = "0a0a0a0a-0b0b-5c0c-8d0d-0e0e0e0e0e0e";
const RETURNED = { "tarry-id": ID, "tarry-round": 2, "tarry-count": 1, "tarry-queue": "orders" };
const QUIET = { warn() {}, error() {} };

function message(properties = {}, content = "body") {
  return {
    content: Buffer.from(content),
    fields: { exchange: "", routingKey: "orders" },
    properties: { headers: {}, messageId: "m-1", ...properties },
  };
}

/** `answer` gets each publish and its callback. */
class FakeConnection extends EventEmitter {
  connection = { frameMax: 131_072 };
  published = [];
  opened = 0;

  constructor(answer) {
    super();
    this.answer = answer;
  }

  async createConfirmChannel() {
    this.opened += 1;
    const channel = new EventEmitter();
    channel.close = async () => channel.emit("close");
    channel.publish = (...publish) => {
      this.published.push(publish);
      this.answer(publish, channel);
    };
    return channel;
  }

  createChannel() {
    return this.createConfirmChannel();
  }
}

function fakeChannel() {
  const channel = new EventEmitter();
  channel.settled = [];
  channel.ack = () => channel.settled.push("ack");
  channel.nack = (_message, _all, requeue) => channel.settled.push(requeue ? "requeue" : "reject");
  return channel;
}

async function failOnce(answer, options = {}, channel = fakeChannel()) {
  const connection = new FakeConnection(answer);
  const retries = new Retries(connection, { pauses: [0, 0], log: QUIET, ...options });
  await retries.handler(channel, "orders", () => Promise.reject(new Error("no card")))(message());
  return { connection, channel };
}

test("a message is acknowledged only after its request was confirmed", async () => {
  const channel = fakeChannel();
  let before;
  await failOnce(([, , , , confirm]) => {
    before = [...channel.settled];
    confirm(null);
  }, {}, channel);
  assert.deepEqual([before, channel.settled], [[], ["ack"]]);
});

test("a request that is refused, returned or cut off is tried again, then the message is requeued", async () => {
  const answers = {
    refused: ([, , , , confirm]) => confirm(new Error("nacked")),
    returned: ([, key, , , confirm], channel) => {
      channel.emit("return", { fields: { routingKey: key, replyText: "NO_ROUTE" } });
      confirm(null);
    },
    cut: (_publish, channel) => channel.emit("close"),
    throws: () => {
      throw new Error("channel closed");
    },
  };
  for (const [name, answer] of Object.entries(answers)) {
    const { connection, channel } = await failOnce(answer);
    assert.deepEqual([name, connection.published.length, channel.settled], [name, 3, ["requeue"]]);
  }
});

test("another channel is opened after a refusal, and none after a return", async () => {
  const refused = await failOnce(([, , , , confirm]) => confirm(new Error("nacked")));
  assert.equal(refused.connection.opened, 3);
});

test("no request is published for a message whose channel is closed", async () => {
  const channel = fakeChannel();
  const { connection } = await failOnce(
    ([, , , , confirm]) => {
      channel.emit("close");
      confirm(new Error("nacked"));
    },
    {},
    channel,
  );
  assert.deepEqual([connection.published.length, channel.settled], [1, []]);
});

test("close waits for the handlers that are running", async () => {
  const [connection, channel] = [new FakeConnection(() => {}), fakeChannel()];
  const retries = new Retries(connection, { log: QUIET });
  let finish;
  const handle = retries.handler(channel, "orders", () => new Promise((resolve) => (finish = resolve)));
  handle(message());
  const closed = retries.close().then(() => "closed");
  assert.equal(await Promise.race([closed, Promise.resolve("running")]), "running");
  finish();
  assert.equal(await closed, "closed");
  assert.deepEqual(channel.settled, ["ack"]);
  assert.equal(handle(message()), undefined);
  assert.deepEqual(channel.settled, ["ack"]);
});

test("headers near the limit of a frame shorten the reason", () => {
  const large = message({ headers: { large: "x".repeat(127_500) } });
  const incoming = { message: large, queue: "orders", attempt: attemptOf(large, "orders") };
  const failure = { type: "Error", reason: "é".repeat(1_000), verdict: {} };
  assert.equal([...requestOf(incoming, failure, undefined, 131_072).headers.error_reason].length, 80);
});

test("properties that do harm are left out", () => {
  const harmful = { userId: "bob", expiration: "5", clusterId: "c", replyTo: "amq.rabbitmq.reply-to", deliveryMode: 1 };
  const found = message(harmful);
  const incoming = { message: found, queue: "orders", attempt: attemptOf(found, "orders") };
  const request = requestOf(incoming, { type: "Error", reason: "", verdict: {} }, undefined, 131_072);
  assert.deepEqual([request.userId, request.expiration, request.clusterId, request.replyTo], Array(4).fill(undefined));
  assert.deepEqual([request.deliveryMode, request.headers["tarry-user-id"]], [2, "bob"]);
});

test("an error's type is its name, or that of its class", () => {
  class CardDeclined extends TypeError {}
  const named = Object.assign(new Error(), { name: "Named" });
  const types = [new CardDeclined(), named, new DOMException("", "AbortError"), new RangeError(), "text", null];
  assert.deepEqual(types.map(typeName), ["CardDeclined", "Named", "AbortError", "RangeError", "string", "null"]);
});

test("Retry-After is read as seconds, as a date, and of other HTTP clients", () => {
  const now = Date.parse("2026-01-01T00:00:00Z");
  const after = (response) => {
    try {
      checkResponse(response, now);
    } catch (error) {
      assert.ok(error instanceof RateLimited);
      return error.retryAfter;
    }
    return "no limit";
  };
  const headers = { "Retry-After": "Thu, 01 Jan 2026 00:00:30 GMT" };
  assert.equal(after({ status: 429, headers }), 30);
  assert.equal(after({ response: { statusCode: 503, headers: { "retry-after": "1.5" } } }), 1.5);
  assert.equal(after({ status: 503, headers: { "retry-after": "soon" } }), undefined);
  assert.equal(after({ status: 500 }), "no limit");
});

test("an option that does not exist is refused", () => {
  assert.throws(() => withDefaults({ redacted: String }), /there is no option redacted/);
  assert.throws(() => withDefaults({ classes: new Map([[Error, "fatal"]]) }), /Error cannot be of the class fatal/);
});

test("a full batch of outcomes is reported at once", () => {
  let full = 0;
  const outcomes = new Outcomes(withDefaults({ reportBatch: 2 }), () => {}, () => (full += 1));
  outcomes.add(RETURNED, "orders", 0);
  assert.equal(full, 0);
  outcomes.add({ ...RETURNED, "tarry-round": 3 }, "orders", 0);
  assert.equal(full, 1);
  assert.equal(JSON.parse(outcomes.take()).outcomes.length, 2);
  assert.equal(outcomes.take(), undefined);
});

test("a deduplicator runs an attempt that failed again, and forgets the oldest", async () => {
  const guard = new MemoryDeduplicator(1);
  const [first, second] = ["1", "2"].map((id) => attemptOf(message({ messageId: id }), "orders"));
  await assert.rejects(guard.once(first, () => Promise.reject(new Error("no"))));
  assert.deepEqual([await guard.once(first, () => {}), await guard.once(first, () => {})], [true, false]);
  assert.deepEqual([await guard.once(second, () => {}), await guard.once(first, () => {})], [true, true]);
});

test("two messages that share only an id are two attempts", async () => {
  const guard = new MemoryDeduplicator();
  const attempts = ["a", "b"].map((body) => attemptOf(message({}, body), "orders"));
  assert.deepEqual(await Promise.all(attempts.map((one) => guard.once(one, () => {}))), [true, true]);
});
