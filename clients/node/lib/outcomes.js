// Collects starts and successes and combines them into few reports to the audit. Nothing here waits, sends or fails.
import { hostname } from "node:os";
import * as h from "./headers.js";
import { count } from "./attempt.js";

const MOST = 10_000;
const ID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/**
 * Collects starts and successes of messages that came back from tarry, which does not know any others.
 *
 * A start is reported only if its attempt is still running after `reportSeconds`. `begin` is called if there is
 * something to report later, and must ensure that `take` is called in time; `full` if there is something to report now.
 */
export class Outcomes {
  #options;
  #begin;
  #full;
  #rows = [];
  #starts = new Map(); // attempts that are running and not reported yet, by their key
  #isArmed = false;

  constructor(options, begin, full) {
    this.#options = options;
    this.#begin = begin;
    this.#full = full;
  }

  /** An attempt begins. */
  start(headers, queue) {
    const { report, reportStarts } = this.#options;
    const about = report && reportStarts && aboutOf(headers, queue);
    if (!about || this.#starts.size >= MOST) return;
    this.#starts.set(keyOf(about), { ...about, outcome: "started", at_ms: Date.now() });
    this.#arm();
  }

  /** The attempt ended and was not a success: a request follows, or the broker has the message again. */
  end(headers, queue) {
    const about = aboutOf(headers, queue);
    if (about) this.#starts.delete(keyOf(about));
  }

  add(headers, queue, seconds) {
    const about = this.#options.report && aboutOf(headers, queue);
    if (!about) return;
    this.#starts.delete(keyOf(about));
    if (this.#rows.length >= MOST) return; // reports are not being taken; the audit has to presume these successes
    const [retry_count, duration_ms] = [count(headers[h.COUNT]) ?? 0, Math.max(0, Math.floor(seconds * 1000))];
    this.#rows.push({ ...about, outcome: "succeeded", retry_count, at_ms: Date.now(), duration_ms });
    const isLong = this.#options.reportStarts && seconds >= this.#options.reportSeconds;
    // The start of a long attempt was reported: if its success is lost, it counts as stuck.
    if (isLong || this.#rows.length >= this.#options.reportBatch) this.#full();
    else this.#arm();
  }

  /** The pending report, or undefined; starts of attempts that have only just begun stay. */
  take() {
    const latest = Date.now() - this.#options.reportSeconds * 1000;
    const consumer = this.#options.consumer ?? `${hostname()}:${process.pid}`;
    const starts = [...this.#starts.values()].filter((start) => start.at_ms <= latest);
    for (const start of starts) this.#starts.delete(keyOf(start));
    const outcomes = [...this.#rows, ...starts.map((start) => ({ ...start, consumer }))];
    this.#rows = [];
    this.#isArmed = false;
    if (this.#starts.size) this.#arm();
    return outcomes.length ? Buffer.from(JSON.stringify({ outcomes })) : undefined;
  }

  /** For a consumer that closes: the broker delivers what it has not settled again. */
  forgetStarts() {
    this.#starts.clear();
  }

  #arm() {
    if (this.#isArmed) return;
    this.#isArmed = true;
    this.#begin();
  }
}

/** The id and the round of a message that returned to this queue; undefined for any other. */
function aboutOf(headers, queue) {
  if (!headers || headers[h.QUEUE] !== queue) return undefined;
  const [id, round] = [headers[h.ID], count(headers[h.ROUND])];
  return typeof id === "string" && ID.test(id) && round !== undefined ? { id, round } : undefined;
}

function keyOf({ id, round }) {
  return `${id}:${round}`;
}
