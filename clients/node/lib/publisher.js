// Publishes on channels of its own: requests mandatory and confirmed, reports neither.

const CONFIRM_MS = 30_000; // after that the message counts as not accepted
const REPORT = { contentType: "application/vnd.tarry.outcomes+json", persistent: true };

/** The broker did not confirm a message, or returned it. */
export class NotTakenError extends Error {}

/** Opens its channels when they are first needed, and opens others after they were closed. */
export class Publisher {
  #connection;
  #names;
  #channels = new Map(); // by their kind, while they are open

  constructor(connection, prefix) {
    this.#connection = connection;
    this.#names = { intake: `${prefix}intake`, reports: `${prefix}reports` };
  }

  get frameMax() {
    return this.#connection.connection?.frameMax || 131_072;
  }

  /** Resolves once the broker has accepted the message; throws NotTakenError in every other case. */
  async request(body, options) {
    const opening = this.#channel(RequestChannel);
    const channel = await opening;
    try {
      await channel.publish(this.#names.intake, body, options);
    } catch (error) {
      // On old brokers, once a full queue has refused a publish, the channel keeps refusing: the next has a new one.
      if (error.isRefusal) {
        this.#forget(RequestChannel, opening);
        channel.retire();
      }
      throw error;
    }
  }

  /** Resolves once the report is written to the connection. */
  async report(body) {
    const channel = await this.#channel(OwnChannel);
    try {
      channel.raw.publish(this.#names.reports, "", body, REPORT);
    } catch (error) {
      throw new NotTakenError(error.message, { cause: error });
    }
  }

  async close() {
    const opened = await Promise.allSettled(this.#channels.values());
    await Promise.all(opened.map(({ value }) => value?.close()));
  }

  #channel(Kind) {
    const found = this.#channels.get(Kind);
    if (found) return found;
    const opening = this.#open(Kind);
    this.#channels.set(Kind, opening);
    const forget = () => this.#forget(Kind, opening);
    opening.then((channel) => channel.closed.then(forget), forget);
    return opening;
  }

  /** Another may have taken its place by now. */
  #forget(Kind, opening) {
    if (this.#channels.get(Kind) === opening) this.#channels.delete(Kind);
  }

  async #open(Kind) {
    try {
      const opening = Kind.confirms ? this.#connection.createConfirmChannel() : this.#connection.createChannel();
      return new Kind(await opening);
    } catch (error) {
      throw new NotTakenError(`no channel could be opened: ${error.message}`, { cause: error });
    }
  }
}

class OwnChannel {
  static confirms = false;
  isClosed = false;

  constructor(raw) {
    this.raw = raw;
    raw.on("error", (error) => (this.problem = error)); // without a listener it would end the process
    this.closed = new Promise((resolve) => {
      raw.on("close", () => {
        this.isClosed = true;
        this.onClose();
        resolve();
      });
    });
  }

  onClose() {}

  async close() {
    try {
      if (!this.isClosed) await this.raw.close();
    } catch {
      // it was closed by the other side
    }
  }
}

/** A returned message is told from others by its routing key: the exchange is a fanout, so the key is free for it. */
class RequestChannel extends OwnChannel {
  static confirms = true;
  #next = 0;
  #waiting = new Map();
  #isRetired = false;

  constructor(raw) {
    super(raw);
    raw.on("return", ({ fields }) => {
      const found = this.#waiting.get(fields.routingKey);
      if (found) found.returned = fields.replyText;
    });
  }

  publish(exchange, body, options) {
    const key = String((this.#next += 1));
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => this.#end(key, "no answer from the broker for 30 seconds"), CONFIRM_MS);
      this.#waiting.set(key, { resolve, reject, timer });
      try {
        this.raw.publish(exchange, key, body, options, (refused) => {
          const returned = this.#waiting.get(key)?.returned;
          if (refused) this.#end(key, "the broker refused it", true);
          else this.#end(key, returned && `${exchange} leads to no queue (${returned})`);
        });
      } catch (error) {
        this.#end(key, error.message);
      }
    });
  }

  /** Closes the channel once nothing waits for its confirms. */
  retire() {
    this.#isRetired = true;
    this.#closeIfIdle();
  }

  onClose() {
    for (const key of [...this.#waiting.keys()]) this.#end(key, this.problem?.message ?? "its channel was closed");
  }

  #end(key, problem, isRefusal = false) {
    const found = this.#waiting.get(key);
    if (!found) return;
    this.#waiting.delete(key);
    clearTimeout(found.timer);
    if (problem) found.reject(Object.assign(new NotTakenError(problem), { isRefusal }));
    else found.resolve();
    this.#closeIfIdle();
  }

  #closeIfIdle() {
    if (this.#isRetired && this.#waiting.size === 0) this.close();
  }
}
