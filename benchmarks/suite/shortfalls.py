"""Where a promise was not kept: why, with the run's own figures. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.suite.promises import BACKLOG, CAPACITY, DRAIN, DRIFT, END_TO_END, SCHEDULING, TARRY, Promise
from benchmarks.suite.samples import HUNDRED_THOUSAND, Samples
from benchmarks.suite.svg import figure

PARTS = ("own", "broker", "postgres")


def shortfalls(found: Samples, judged: Sequence[Promise]) -> str:
    """A paragraph for each promise that was broken; empty where all were kept."""
    told = [f"- **{one.text}**: {_why(found, one)}" for one in judged if one.kept is False]
    return "\n".join(["### Where it falls short, and why\n", *told, ""]) if told else ""


def _why(found: Samples, one: Promise) -> str:
    scenario, other = one.about
    if scenario == END_TO_END:
        return _poller(found, other) if other.startswith("polling") else _other_client(found, other)
    if scenario == CAPACITY:
        return _capacity(found, other)
    if scenario == DRAIN:
        return _drain(found)
    if scenario == SCHEDULING:
        return _scheduling(found)
    return {
        DRIFT: "at this load the cores are nearly full; see the drift at lower rates.",
        BACKLOG: "see the table with the backlog.",
    }[scenario]


def _scheduling(found: Samples) -> str:
    """Microseconds for one request are seconds for 100,000, times ten."""
    told = ""
    if seconds := _seconds(found, SCHEDULING, TARRY):
        own, broker, postgres = (figure(one * 10) for one in seconds)
        told = f": {own} µs of it in the router, {broker} in RabbitMQ, {postgres} in Postgres for each request"
    return (
        f"all cores are busy, and it is processor time that counts{told}. Raw publishing has the cores for itself and "
        "the broker, reads no request, keeps no audit and carries no header but an id. The router's own part is spread "
        "over reading, deciding, encoding and recording, with no step that stands out in a profile."
    )


def _drain(found: Samples) -> str:
    unread = found.ratio(DRAIN, ("whole way", "per_s"), ("bare tier", "per_s"))
    told = f" With the tap unread it is {figure(unread.median)}." if unread else ""
    return (
        "reading the tap and writing the store takes its share of the cores that bring messages home, although it "
        f"stands back in a burst; what each step adds is in the table of what is due at once.{told}"
    )


def _poller(found: Samples, other: str) -> str:
    ours, theirs = _cost(found, TARRY), _cost(found, other)
    late = found.spread(DRIFT, other, "p99 at 200/s"), found.spread(DRIFT, TARRY, "p99 at 200/s")
    text = (
        "it is processor time that counts"
        + (f": {ours} for tarry, {theirs} for the poller. " if ours and theirs else ". ")
        + "A retry of tarry's is written by four quorum queues on its way home (tier, relay, tap and origin) and each "
        "step of it into Postgres; the poller's waits as a row, and only the origin queue writes it."
    )
    if all(late):
        us, them = (figure(one.median) for one in reversed(late) if one)
        text += f" That buys a drift p99 of {us} ms at 200/s instead of {them} ms,"
    else:
        text += " That buys"
    return f"{text} and retries that come back while every process but the broker is down."


def _capacity(found: Samples, other: str) -> str:
    ours, theirs = found.capacity(TARRY), found.capacity(other)
    if ours is None or theirs is None:
        return "see the table of capacity."
    here, there = (found.spread(CAPACITY, one.subject, f"cpu µs at {one.value:.0f}/s") for one in (ours, theirs))
    told = f" ({figure(here.median)} µs for tarry, {figure(there.median)} µs for it)" if here and there else ""
    return (
        f"at the highest rate that each carries, a retry of tarry's takes more processor time{told}: it is written by "
        "four quorum queues on its way home and each step of it into Postgres."
    )


def _other_client(found: Samples, other: str) -> str:
    ours, theirs = _cost(found, TARRY), _cost(found, other)
    told = f": {ours} for tarry, {theirs} for it" if ours and theirs else ""
    return (
        f"it takes less processor time, and does not keep the cores as busy{told}. The larger part of tarry's is "
        "RabbitMQ's, which no client makes smaller; and when the last request is scheduled, more than half are still "
        "on their way home through the broker's dead-letter workers, with little for the router to do (HISTORY.md)."
    )


def _cost(found: Samples, slug: str) -> str:
    seconds = _seconds(found, END_TO_END, slug)
    if not seconds:
        return ""
    rate = found.spread(END_TO_END, slug, "per_s")
    busy = f", {figure(rate.median * sum(seconds) / HUNDRED_THOUSAND)} cores in use" if rate else ""
    return f"{figure(sum(seconds))} s for 100,000 retries, {figure(seconds[1])} of them in RabbitMQ{busy}"


def _seconds(found: Samples, scenario: str, slug: str) -> list[float]:
    """Processor time for 100,000 of them, part by part; empty unless all parts are known."""
    parts = [found.spread(scenario, slug, f"cpu_{part}_s") for part in PARTS]
    known = [one.median for one in parts if one]
    return known if len(known) == len(PARTS) else []
