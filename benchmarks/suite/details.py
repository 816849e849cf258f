"""The tables about tarry's own ways: drift, drain, cost, backlog, and how else it can be run. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.suite.charts import label_of
from benchmarks.suite.grid import Grid, told
from benchmarks.suite.samples import CAPACITY_BOUND_MS, Samples
from benchmarks.suite.svg import figure

RATES = (50, 200, 1_000, 3_000)


def capacity(found: Samples, names: dict[str, str]) -> Grid:
    rows = [_carried(found, one, label_of(one, names)) for one in found.subjects("capacity")]
    text = (
        f"The steady rate is raised by half, 30 s each, until returns are more than {CAPACITY_BOUND_MS:.0f} ms late at "
        "the 99th percentile or something is still outstanding a second and a half after the last was due; then one "
        "rate between is tried. Every retry waits 2 s, 512-byte bodies; tarry's returns must also be in Postgres. Who "
        "polls is shown at two intervals. Processor time is that of all processes, broker and Postgres included."
    )
    columns = (
        "",
        "carried, retries per second",
        "p99 ms late",
        "came early",
        "processor time each, µs",
        "memory, MiB",
        "",
    )
    return Grid("Capacity at bounded drift", text, columns, rows, "bench-capacity.svg")


def _carried(found: Samples, subject: str, name: str) -> list[str]:
    best = found.spread("capacity", subject, "per_s")
    broke = found.failure("capacity", subject)
    rate = f"{best.median:.0f}/s" if best else ""
    late, early, cpu, mib = (
        found.spread("capacity", subject, f"{one} at {rate}") for one in ("p99 ms", "early", "cpu µs", "MiB")
    )
    share = f"{early.median:.0%}" if early and early.median else "none" if early else "–"
    note = f"broke: {broke}" if broke else "" if best and best.median else "no rate was carried"
    return [name, told(best), told(late), share, told(cpu), told(mib), note]


def drift(found: Samples, names: dict[str, str]) -> Grid:
    rows = []
    for slug in found.subjects("drift"):
        row = [names.get(slug, slug)]
        for rate in RATES:
            three = [found.spread("drift", slug, f"{one} at {rate}/s") for one in ("p50", "p99", "max")]
            missing = "not measured" if found.carries(slug, rate) else "cannot carry it"
            row.append(" / ".join(figure(one.median) for one in three if one) or missing)
        broke = found.failure("drift", slug)
        rows.append([*row, f"broke: {broke}" if broke else ""])
    text = (
        "Milliseconds after the due moment, p50 / p99 / max, at the consumer of the queue, 2 s delays. For the ladder "
        "(delays of 2 to 4 s to the millisecond) what is rounded up to 125 ms counts as late, and so does the time "
        "from sending the request. A load that is not 15 % under a contender's end-to-end throughput is not put on it."
    )
    columns = ("", *(f"{rate:,}/s" for rate in RATES), "")
    return Grid("Drift", text, columns, rows, "bench-drift-1000.svg")


def drain(found: Samples, names: dict[str, str]) -> Grid:
    rows, before = [], None
    for slug in found.subjects("drain"):
        spread = found.spread("drain", slug, "per_s")
        if spread is None:
            rows.append([names.get(slug, slug), f"broke: {found.failure('drain', slug)}", *[""] * 5])
            continue
        of_bare = found.ratio("drain", (slug, "per_s"), ("bare tier", "per_s"))
        each = 1e6 / spread.median
        added = "" if before is None or slug in names else f"{each - before:+.0f} µs"
        late = [found.spread("drain", slug, one) for one in ("p50_ms", "p99_ms")]
        seconds, work = (found.spread("drain", slug, one) for one in ("seconds", "broker_us"))
        rows.append(
            [
                names.get(slug, slug),
                told(spread),
                told(of_bare),
                added,
                told(work),
                told(seconds),
                " / ".join(figure(one.median) for one in late if one),
            ]
        )
        before = each
    text = (
        "A tier full of messages that expire in the same moment, with the way home cut short: *deliver* has only the "
        "exchange that finds the queue, *tap* adds the copy for the audit, *relay* the relay queue and the held gate, "
        "*whole way* the cancelled gate and the ladder's exchanges; at last the service reads the tap and writes."
    )
    columns = (
        "",
        "messages per second",
        "of the bare tier",
        "each message takes longer by",
        "RabbitMQ's work for each, µs",
        "seconds",
        "p50 / p99 ms late",
    )
    return Grid("Many due at once", text, columns, rows, "bench-drain.svg")


def cost(found: Samples, names: dict[str, str]) -> Grid:
    rows = []
    for slug in found.subjects("end to end"):
        parts = [found.spread("end to end", slug, f"cpu_{one}_s") for one in ("own", "broker", "postgres")]
        known = [one.median for one in parts if one]
        if known:
            held = told(found.spread("scheduling", slug, "held_mib"))
            rows.append([names.get(slug, slug), *(figure(one) for one in known), figure(sum(known)), held])
    text = (
        "For 100,000 retries. Processor seconds end to end; starting the processes is left out. Memory: what the "
        "broker's node has in use when all of them wait, less what it had before their requests were sent; what its "
        "collector of garbage has yet to collect is in it."
    )
    columns = ("", "its own processes s", "RabbitMQ s", "Postgres s", "all s", "RabbitMQ's memory MiB")
    return Grid("What it costs", text, columns, rows)


def backlog(found: Samples) -> Grid:
    measures = ("per_s", "start_s", "p50 at 200/s", "p99 at 200/s", "p50 at 1000/s", "p99 at 1000/s", "broker_mib")
    rows = [[one, *(told(found.spread("backlog", one, it)) for it in measures)] for one in found.subjects("backlog")]
    text = (
        "So many wait in one tier and in the store; then a full request queue is scheduled into that same tier, and "
        "retries of 2 to 4 s go by the ladder. Start-up is from the start of the process to its first scheduled retry."
    )
    columns = (
        "",
        "requests per second",
        "start-up s",
        "drift p50 ms at 200/s",
        "p99",
        "p50 at 1,000/s",
        "p99",
        "broker memory MiB",
    )
    return Grid("With a backlog", text, columns, rows, "bench-backlog.svg")


def ways(found: Samples) -> Iterator[Grid]:
    each = {"retries per second": "per_s"}
    yield _way(
        found, "routers", "Several routers on one machine", "They share its cores with broker and Postgres.", each
    )
    yield _way(found, "bodies", "Body sizes", "End to end, with the audit.", each | {"MiB per second": "mib_per_s"})
    text = (
        "End to end. Off: claims are granted, nothing is written. On the spool: no Postgres, the broker keeps records."
    )
    yield _way(found, "audit", "The audit on, off and on the spool", text, each)
    text = "What `tarry status` asks, twice a second, while the load runs."
    answers = {"answer p50 ms": "answer_p50_ms", "answer max ms": "answer_max_ms"}
    yield _way(found, "dashboard", "Somebody looks on", text, each | answers)


def _way(found: Samples, scenario: str, heading: str, text: str, measures: dict[str, str]) -> Grid:
    rows = []
    for one in found.subjects(scenario):
        broke = found.failure(scenario, one)
        cells = [told(found.spread(scenario, one, it)) for it in measures.values()]
        rows.append([one, *([f"broke: {broke}", *cells[1:]] if broke else cells)])
    return Grid(heading, text, ("", *measures), rows)


def cluster(found: Samples) -> Grid:
    measures = ("per_s", "cpu_own_s", "cpu_broker_s", "cpu_postgres_s")
    rows = [[one, *(told(found.spread("cluster", one, it)) for it in measures)] for one in found.subjects("cluster")]
    text = (
        "Three nodes share the cores that one had, every queue has a member on each: compare the processor time, which "
        "is for 100,000 retries, and not the rate."
    )
    columns = ("", "retries per second", "router s", "RabbitMQ s, all nodes", "Postgres s")
    return Grid("Three nodes", text, columns, rows)
