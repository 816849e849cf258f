// Receives events from a webhook of tarry: verifies the signature, and handles each event once.
//
// WEBHOOK_SECRET=whsec_… node receiver.js PORT. It needs Node alone; the package `standardwebhooks` does the same.
"use strict";

const crypto = require("node:crypto");
const http = require("node:http");

const KEY = Buffer.from(process.env.WEBHOOK_SECRET.replace(/^whsec_/, ""), "base64");
const TOLERANCE_S = 300;
const LARGEST_BODY = 1 << 20;

const handled = new Set(); // in production, a table: an event can be delivered again after a restart

// Whether the request is from somebody who has the secret, and not an old one that is sent again.
function isSigned(headers, body) {
  const timestamp = headers["webhook-timestamp"] ?? "";
  if (!/^\d+$/.test(timestamp) || Math.abs(Date.now() / 1000 - Number(timestamp)) > TOLERANCE_S) return false;
  const content = Buffer.concat([Buffer.from(`${headers["webhook-id"] ?? ""}.${timestamp}.`), body]);
  const expected = Buffer.from(`v1,${crypto.createHmac("sha256", KEY).update(content).digest("base64")}`);
  return (headers["webhook-signature"] ?? "")
    .split(" ")
    .map((one) => Buffer.from(one))
    .some((given) => given.length === expected.length && crypto.timingSafeEqual(given, expected));
}

// Keep it short: tarry waits for the answer.
function handle(event) {
  console.log(JSON.stringify({ event: event.type, about: event.subject, data: event.data }));
}

function answer(response, status) {
  response.writeHead(status, { "content-length": 0 });
  response.end();
}

http
  .createServer((request, response) => {
    const parts = [];
    let size = 0;
    request.on("data", (part) => {
      size += part.length;
      if (size <= LARGEST_BODY) parts.push(part);
      else request.destroy();
    });
    request.on("end", () => {
      const body = Buffer.concat(parts);
      if (request.method !== "POST") return answer(response, 405);
      if (!isSigned(request.headers, body)) return answer(response, 401);
      const event = JSON.parse(body);
      if (!handled.has(event.id)) {
        handle(event);
        handled.add(event.id);
      }
      answer(response, 204); // only now: without a 2xx, tarry delivers the event again
    });
  })
  .listen(Number(process.argv[2]), "127.0.0.1");
