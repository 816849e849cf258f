// Suppresses duplicates, for handlers that cannot tolerate the rare duplicate of an at-least-once delivery.

/** Remembers in memory what this process completed, up to `most` attempts; the oldest are forgotten. */
export class MemoryDeduplicator {
  #most;
  #done = new Set();
  #running = new Map();

  constructor(most = 100_000) {
    this.#most = most;
  }

  /**
   * Runs the work unless it was done before; resolves to whether it ran. If it throws, it counts as not done. The same
   * attempt delivered again while the first is running waits for its outcome.
   */
  async once(attempt, work) {
    const key = attempt.key;
    if (key === undefined) {
      await work();
      return true;
    }
    const before = this.#running.get(key) ?? Promise.resolve();
    const turn = before.then(() => this.#unlessDone(key, work));
    const settled = turn.then(ignore, ignore);
    this.#running.set(key, settled);
    try {
      return await turn;
    } finally {
      if (this.#running.get(key) === settled) this.#running.delete(key);
    }
  }

  async #unlessDone(key, work) {
    if (this.#done.has(key)) return false;
    await work();
    this.#done.add(key);
    for (const oldest of this.#done) {
      if (this.#done.size <= this.#most) break;
      this.#done.delete(oldest);
    }
    return true;
  }
}

function ignore() {}
