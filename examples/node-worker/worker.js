// A worker that knows nothing of tarry. It does what AMQP workers do: acknowledge what works, reject what fails.
// Once `tarry attach orders` has run, every reject comes back later, on the schedule of the policy that matches.
import amqplib from "amqplib";

const url = process.env.RABBITMQ_URL ?? "amqp://guest:guest@localhost:5672/";
const queue = process.env.QUEUE ?? "orders";

function handle(order) {
  if (order.card === "declined") throw new Error(`card of order ${order.id} was declined`);
}

const connection = await amqplib.connect(url);
const channel = await connection.createChannel();
await channel.assertQueue(queue, { durable: true, arguments: { "x-queue-type": "quorum" } });
await channel.prefetch(10);

await channel.consume(queue, (message) => {
  const order = JSON.parse(message.content.toString());
  try {
    handle(order);
    channel.ack(message);
    report(order, message, "done");
  } catch (error) {
    channel.nack(message, false, false); // not to all before it, and not straight back into the queue
    report(order, message, `failed: ${error.message}`);
  }
});
console.error(`waiting for messages in ${queue}`);

function report(order, message, outcome) {
  console.log(JSON.stringify({ at: Date.now(), order: order.id, key: message.fields.routingKey, outcome }));
}

async function stop() {
  await connection.close();
  process.exit(0);
}
process.on("SIGINT", stop);
process.on("SIGTERM", stop);
