// Reads from a delivery which attempt it is, how many are allowed, and until when there will be more.
import { createHash } from "node:crypto";
import * as h from "./headers.js";

/** One delivery of a message. */
export class Attempt {
  constructor(queue, messageId, returned = {}, content = undefined) {
    this.queue = queue;
    this.messageId = messageId;
    this.retryId = returned.retryId;
    this.round = returned.round ?? 0;
    this.retryCount = returned.retryCount ?? 0;
    this.maxRetries = returned.maxRetries;
    this.due = returned.due;
    this.firstFailed = returned.firstFailed;
    this.deadline = returned.deadline;
    Object.defineProperty(this, "content", { value: content });
    Object.freeze(this);
  }

  get number() {
    return this.retryCount + 1;
  }

  get isLast() {
    return this.maxRetries !== undefined && this.retryCount >= this.maxRetries;
  }

  /** Equal for all deliveries of this attempt, different for every other attempt; undefined if that cannot be known. */
  get key() {
    if (this.retryId !== undefined) return `${this.retryId}:${this.round}`;
    if (this.messageId === undefined || this.content === undefined) return undefined;
    return `${JSON.stringify([this.queue, this.messageId])}:${this.content()}:${this.round}`;
  }
}

/** Reads an attempt from a message. Never throws: an invalid value counts as absent. */
export function attemptOf(message, queue) {
  const headers = message.properties.headers ?? {};
  const content = () => digest(headers, message.content);
  return new Attempt(queue, text(message.properties.messageId), returned(headers, queue), content);
}

function returned(headers, queue) {
  if (!(h.ID in headers)) return {};
  const isSameQueue = headers[h.QUEUE] === queue;
  if (!isSameQueue && !(h.VIA in headers)) return {}; // forwarded from another queue: a new message here
  return {
    retryId: isSameQueue ? text(headers[h.ID]) : undefined,
    round: count(headers[h.ROUND]),
    retryCount: count(headers[h.COUNT]),
    maxRetries: count(headers[h.MOST]),
    due: moment(headers[h.DUE]),
    firstFailed: moment(headers[h.SINCE]),
    deadline: moment(headers[h.DEADLINE]),
  };
}

/** Of what the user sent, without what tarry and the broker added. */
function digest(headers, body) {
  const users = Object.entries(headers).filter(([name]) => !h.isAdded(name));
  const told = JSON.stringify(users.sort(([one], [other]) => (one < other ? -1 : 1)));
  return createHash("sha256").update(told).update("\0").update(body).digest("hex");
}

export function text(value) {
  return typeof value === "string" ? value : undefined;
}

export function count(value) {
  return Number.isInteger(value) && value >= 0 ? value : undefined;
}

function moment(value) {
  const ms = count(value);
  const found = ms === undefined ? undefined : new Date(ms);
  return found === undefined || Number.isNaN(found.getTime()) ? undefined : found;
}
