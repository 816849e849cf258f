// Builds the retry request for a delivery that failed: the original message, plus headers that describe the failure.
import * as h from "./headers.js";
import { cut } from "./failure.js";

const SHORT_REASON = 80; // characters of a reason if the headers are close to the limit of a frame
const OTHER_PROPERTIES = 2_600; // ten short strings of at most 255 bytes, and the frame's own
const DIRECT_REPLY = "amq.rabbitmq.reply-to";

/** What amqplib is to publish; its content is the delivery's. A message that has an owner keeps it. */
export function requestOf(incoming, failure, owner, frameMax) {
  const headers = headersOf(incoming, failure, owner);
  if (size(headers) + OTHER_PROPERTIES > frameMax) headers.error_reason = cut(headers.error_reason, SHORT_REASON);
  return { ...carried(incoming.message.properties), headers, deliveryMode: 2, persistent: true, mandatory: true };
}

/** All properties but those that do harm: a user_id of another user closes the channel, an expiration ends the wait. */
function carried(properties) {
  const { contentType, contentEncoding, priority, correlationId, replyTo, messageId, timestamp, type, appId } = properties;
  const kept = { contentType, contentEncoding, priority, correlationId, messageId, timestamp, type, appId };
  if (replyTo !== DIRECT_REPLY) kept.replyTo = replyTo;
  return Object.fromEntries(Object.entries(kept).filter(([, value]) => value !== undefined));
}

/** All of tarry's own headers are kept: they say which round failed. The description of an earlier failure is dropped. */
function headersOf({ message, queue, attempt }, { type, reason, verdict }, owner) {
  const { headers = {}, userId } = message.properties;
  const kept = Object.entries(headers).filter(([name]) => !h.isStale(name));
  const own = {
    original_queue: queue,
    original_exchange: message.fields.exchange,
    original_routing_key: message.fields.routingKey || queue,
    retry_count: attempt.retryCount,
    error_type: type,
    error_reason: reason,
    error_class: verdict.errorClass,
    retry_after_ms: verdict.retryAfterMs,
    [h.OWNER]: headers[h.OWNER] ? undefined : owner,
    [h.USER_ID]: userId,
  };
  const told = Object.entries(own).filter(([, value]) => value !== undefined);
  return { ...Object.fromEntries(kept), ...Object.fromEntries(told) };
}

/** At most so many bytes when it is encoded. */
function size(value) {
  if (typeof value === "string") return 5 + Buffer.byteLength(value);
  if (Buffer.isBuffer(value)) return 5 + value.length;
  if (typeof value !== "object" || value === null) return 9;
  return Object.entries(value).reduce((sum, [name, one]) => sum + 1 + Buffer.byteLength(name) + size(one), 5);
}
