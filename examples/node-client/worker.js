// A worker that says why: the contract's headers are all it takes. What succeeds after a retry is reported.
import amqplib from "amqplib";

const url = process.env.RABBITMQ_URL ?? "amqp://guest:guest@localhost:5672/";
const queue = process.env.QUEUE ?? "orders";

const connection = await amqplib.connect(url);
const channel = await connection.createChannel();
const requests = await connection.createConfirmChannel(); // a channel of its own: it confirms, and may be closed
await channel.assertQueue(queue, { durable: true, arguments: { "x-queue-type": "quorum" } });
await channel.prefetch(10);

const returned = new Set(); // a message that leads nowhere comes back before it is confirmed
requests.on("return", (message) => returned.add(message.fields.routingKey));
let next = 0;
const outcomes = [];
setInterval(flush, 1000);

function handle(order, attempt) {
  if (order.final) throw Object.assign(new Error("no such order"), { errorClass: "final" });
  if (attempt < order.succeeds_at) throw new Error(`attempt ${attempt} was too early`);
}

await channel.consume(queue, async (message) => {
  const order = JSON.parse(message.content.toString());
  const attempt = 1 + Number(message.properties.headers["tarry-count"] ?? 0);
  const started = Date.now();
  console.log(JSON.stringify({ order: order.id, attempt }));
  try {
    handle(order, attempt);
  } catch (error) {
    try {
      await askForRetry(message, error);
    } catch (problem) {
      console.error(`the request was not taken: ${problem.message}`);
      setTimeout(() => channel.nack(message, false, true), 1000);
      return;
    }
    channel.ack(message);
    return;
  }
  channel.ack(message);
  report(message, Date.now() - started);
});
console.error(`waiting for messages in ${queue}`);

/** Everything of the message but what the broker or an earlier failure wrote on it, and what is to be said of this one. */
async function askForRetry(message, error) {
  const { headers, expiration, userId, ...properties } = message.properties;
  const kept = Object.entries(headers).filter(([name]) => !/^(x-|error_|CC$|BCC$|retry_after_ms$)/.test(name));
  const key = String(next++); // the exchange is a fanout, so the key is free to tell returned messages apart
  const request = {
    ...properties,
    persistent: true,
    mandatory: true,
    headers: {
      ...Object.fromEntries(kept),
      original_queue: queue,
      original_exchange: message.fields.exchange,
      original_routing_key: message.fields.routingKey || queue,
      error_type: error.name,
      error_reason: error.message.slice(0, 1000),
      ...(error.errorClass && { error_class: error.errorClass }),
      ...(error.retryAfterMs && { retry_after_ms: error.retryAfterMs }),
    },
  };
  await new Promise((resolve, reject) =>
    requests.publish("retry.intake", key, message.content, request, (refused) => {
      if (refused) reject(refused);
      else if (returned.delete(key)) reject(new Error("retry.intake leads to no queue"));
      else resolve();
    }),
  );
}

/** Only messages that tarry brought back are of interest. Many in one report are cheap, and there is no hurry. */
function report(message, durationMs) {
  const headers = message.properties.headers;
  if (headers["tarry-queue"] !== queue) return;
  outcomes.push({
    id: headers["tarry-id"],
    round: Number(headers["tarry-round"]),
    outcome: "succeeded",
    retry_count: Number(headers["tarry-count"]),
    at_ms: Date.now(),
    duration_ms: durationMs,
  });
}

function flush() {
  if (outcomes.length === 0) return;
  const report = { outcomes: outcomes.splice(0) };
  channel.publish("retry.reports", "", Buffer.from(JSON.stringify(report)), { persistent: true });
}

async function stop() {
  flush();
  await connection.close();
  process.exit(0);
}
process.on("SIGINT", stop);
process.on("SIGTERM", stop);
