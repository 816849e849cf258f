// Prints each event of tarry once, from the beginning of the stream, and goes on from there when it is started again.
// node consumer.js OFFSET_FILE, and RABBITMQ_URL.
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import amqplib from "amqplib";

const stream = "retry.events.stream";
const place = process.argv[2];
const connection = await amqplib.connect(process.env.RABBITMQ_URL ?? "amqp://guest:guest@localhost:5672/");
const channel = await connection.createChannel();
await channel.prefetch(100); // a stream requires it

const seen = new Set(); // in earnest a unique key in your database, written together with what the event causes
const offset = existsSync(place) ? Number(readFileSync(place, "utf8")) + 1 : "first";

await channel.consume(
  stream,
  (message) => {
    const { headers } = message.properties;
    const event = { data: JSON.parse(message.content.toString()) };
    for (const [name, value] of Object.entries(headers)) {
      if (name.startsWith("cloudEvents:")) event[name.slice("cloudEvents:".length)] = value;
    }
    if (!seen.has(event.id)) {
      seen.add(event.id);
      console.log(JSON.stringify({ id: event.id, type: event.type, subject: event.subject }));
    }
    writeFileSync(place, String(headers["x-stream-offset"])); // after the event is handled: after a crash it comes again
    channel.ack(message);
  },
  { arguments: { "x-stream-offset": offset } },
);

async function stop() {
  await connection.close();
  process.exit(0);
}
process.on("SIGINT", stop);
process.on("SIGTERM", stop);
