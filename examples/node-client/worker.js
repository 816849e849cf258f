// A worker that says why a message failed: tarry-client publishes the request, confirms it, and reports successes.
import amqplib from "amqplib";
import { Final, Retries } from "tarry-client";

const url = process.env.RABBITMQ_URL ?? "amqp://guest:guest@localhost:5672/";
const queue = process.env.QUEUE ?? "orders";

const connection = await amqplib.connect(url);
const channel = await connection.createChannel();
await channel.assertQueue(queue, { durable: true, arguments: { "x-queue-type": "quorum" } });
await channel.prefetch(10);
const retries = new Retries(connection);

const handler = retries.handler(channel, queue, async (message, attempt) => {
  const order = JSON.parse(message.content.toString());
  console.log(JSON.stringify({ order: order.id, attempt: attempt.number }));
  if (order.final) throw new Final("no such order");
  if (attempt.number < order.succeeds_at) throw new Error(`attempt ${attempt.number} was too early`);
});
const { consumerTag } = await channel.consume(queue, handler);
console.error(`waiting for messages in ${queue}`);

async function stop() {
  await channel.cancel(consumerTag);
  await retries.close();
  await connection.close();
}
process.on("SIGINT", stop);
process.on("SIGTERM", stop);
