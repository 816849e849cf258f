// Options of a consumer; index.d.ts describes each.

const CLASSES = ["final", "retryable", "rate_limited"];

const DEFAULTS = {
  prefix: "retry.",
  classes: new Map(),
  owner: undefined,
  redact: undefined,
  longestReason: 1000,
  plain: "request",
  report: true,
  reportStarts: true,
  consumer: undefined,
  reportBatch: 200,
  reportSeconds: 1,
  pauses: [0.1, 0.5, 1, 2, 5, 5, 5, 5],
  log: console,
};

/** The options with their defaults. A name that does not exist is a mistake that would go unnoticed, so it is refused. */
export function withDefaults(options) {
  const unknown = Object.keys(options).find((name) => !(name in DEFAULTS));
  if (unknown !== undefined) throw new TypeError(`there is no option ${unknown}: ${Object.keys(DEFAULTS).join(", ")}`);
  const given = Object.entries(options).filter(([, value]) => value !== undefined);
  const chosen = { ...DEFAULTS, ...Object.fromEntries(given) };
  if (!["request", "reject"].includes(chosen.plain)) throw new TypeError('the option plain is "request" or "reject"');
  for (const [kind, entry] of chosen.classes) {
    if (typeof entry !== "function" && !CLASSES.includes(entry)) {
      throw new TypeError(`${kind.name} cannot be of the class ${entry}: ${CLASSES.join(", ")}`);
    }
  }
  return chosen;
}
