"""What is wrong, and what to do about it. Pure: the dashboard and `tarry top` read, this judges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlencode

from tarry.analytics.anomalies import Kind
from tarry.operations.breaker import BreakerView
from tarry.operations.overview import Activity
from tarry.operations.pause import DestinationPause, Pauses
from tarry.operations.status import ServiceStatus

SHORT = 40
"""The longest name of a destination in the text of a link."""

Level = Literal["ok", "attention", "wrong"]
LEVELS: tuple[Level, ...] = ("ok", "attention", "wrong")


@dataclass(frozen=True, slots=True)
class OverviewFinding:
    """One thing that needs somebody."""

    level: Level
    what: str
    do: str
    link: str | None
    """The page of the dashboard to do it on; None if it is done elsewhere."""
    link_text: str | None
    section: str
    """The section of docs/operations.md."""


@dataclass(frozen=True, slots=True)
class OverviewVerdict:
    """The state of the installation in one word, and why."""

    level: Level
    title: str
    findings: list[OverviewFinding]


@dataclass(frozen=True, slots=True)
class Seen:
    """What the verdict is made of. None: it could not be read, and `status.troubles` or `troubles` says why."""

    status: ServiceStatus
    activity: Activity | None
    pauses: Pauses | None
    stuck: int | None
    missing: int | None
    """Of the latest audit pass; also None if there was none yet."""
    breakers: Sequence[BreakerView] = ()
    troubles: Sequence[str] = ()
    """What else could not be read, and why this process is not ready."""


TITLES: dict[Level, str] = {
    "ok": "Nothing is lost, nothing is late",
    "attention": "Nothing is lost, but something needs attention",
    "wrong": "Something is wrong",
}

TITLES_UNKNOWN: dict[Level, str] = {
    "ok": "Nothing is late",
    "attention": "Nothing is late, but something needs attention",
}
"""As long as there was no audit pass that could say whether anything is missing."""

MISSING = "Retries are missing on the broker"
NOT_LOST = "Nothing is lost, but something is wrong"


def judge(seen: Seen) -> OverviewVerdict:
    found = sorted(_findings(seen), key=lambda one: -LEVELS.index(one.level))
    level = found[0].level if found else "ok"
    return OverviewVerdict(level, _title(level, seen), found)


def _title(level: Level, seen: Seen) -> str:
    if level != "wrong":
        return (TITLES if seen.missing is not None else TITLES | TITLES_UNKNOWN)[level]
    if seen.missing:
        return MISSING
    counts, troubles = seen.status.audit, (*seen.status.troubles, *seen.troubles)
    is_proven = seen.missing == 0 and counts is not None and not counts.overdue and not troubles
    return NOT_LOST if is_proven else TITLES[level]


def _findings(seen: Seen) -> Iterator[OverviewFinding]:
    yield from _of_audit(seen)
    yield from _of_review(seen)
    yield from _of_routers(seen)
    yield from _of_stuck(seen)
    yield from _of_pauses(seen)
    yield from _of_breakers(seen)
    yield from _of_anomalies(seen)
    yield from _of_attachments(seen)
    for why in dict.fromkeys((*seen.status.troubles, *seen.troubles)):
        yield OverviewFinding(
            "wrong", why, "See that it runs, and can be reached.", None, None, "The router is not ready"
        )


def _of_audit(seen: Seen) -> Iterator[OverviewFinding]:
    if seen.missing:
        yield OverviewFinding(
            "wrong",
            f"{_number(seen.missing, 'retry is', 'retries are')} missing on the broker",
            "Compare store and broker, which names them, and publish them again.",
            *("/audit", "Open the audit"),
            "The broker lost its data",
        )
    counts = seen.status.audit
    if counts is None:
        return
    if counts.overdue:
        yield OverviewFinding(
            "wrong",
            f"{_number(counts.overdue, 'retry is', 'retries are')} overdue: due, and not seen to return",
            "See where they are.",
            *("/retries?order=due", "The retries that are due first"),
            "Retries are late",
        )
    if counts.unroutable:
        yield OverviewFinding(
            "wrong",
            f"{_number(counts.unroutable, 'retry has', 'retries have')} no destination: its queue does not exist",
            "Declare the queue again.",
            *("/retries?state=unroutable", "Which retries"),
            "A destination is down",
        )


def _of_review(seen: Seen) -> Iterator[OverviewFinding]:
    counts = seen.status.audit
    if counts is None or not counts.in_review:
        return
    new = sum(seen.activity.reviewed) if seen.activity else 0
    came = f", {new:,} of them came in the last hour" if new else ""
    yield OverviewFinding(
        "wrong" if new else "attention",
        f"{_number(counts.in_review, 'message is', 'messages are')} in review{came}",
        "Decide: redrive or discard.",
        *("/review", "Open the review"),
        "Review grows",
    )


def _of_routers(seen: Seen) -> Iterator[OverviewFinding]:
    for router in seen.status.routers:
        if not router.reports:
            what = f"The router {router.host} ({router.process}) stopped reporting"
            do = "Look at its process on its host; other routers take over its requests."
            yield OverviewFinding("wrong", what, do, None, None, "The router is not ready")
        for trouble in router.troubles:
            what = f"The router {router.host} ({router.process}): {trouble}"
            yield OverviewFinding("attention", what, "See the runbook.", None, None, "The router is not ready")


def _of_stuck(seen: Seen) -> Iterator[OverviewFinding]:
    if seen.stuck:
        yield OverviewFinding(
            "attention",
            f"{_number(seen.stuck, 'attempt has', 'attempts have')} started and not ended in time",
            "Recover them if they do not recover by themselves.",
            *("/stuck", "Open the stuck attempts"),
            "An attempt is stuck",
        )


def _of_pauses(seen: Seen) -> Iterator[OverviewFinding]:
    if seen.pauses is None:
        return
    if seen.pauses.intake.paused:
        what = "The intake is paused: requests wait in their queue"
        do = "Resume it when they may go on."
        link = ("/destinations", "Open the destinations")
        yield OverviewFinding("attention", what, do, *link, "Everything must stop for a while")
    for one in seen.pauses.paused_destinations:
        failed = one.state == "canary_failed"
        held = _number(one.held, "message is held", "messages are held")
        if failed or one.state == "holding":
            yield OverviewFinding(
                "wrong" if failed else "attention",
                f"{one.destination}: {'its canary failed' if failed else 'paused'}, {held}",
                "Resume it when its consumers work again.",
                *_page_of(one),
                "A destination is down",
            )


def _of_breakers(seen: Seen) -> Iterator[OverviewFinding]:
    for one in seen.breakers:
        if one.state != "closed":
            yield OverviewFinding(
                "wrong" if one.state == "open" else "attention",
                f"{one.queue}: its breaker is {one.state.replace('_', '-')}. {one.reason}".strip(),
                "Mend its consumers; it closes by itself once a probe succeeds.",
                *(f"/destinations/one?{urlencode({'name': one.queue})}", f"Open {_short(one.queue)}"),
                "A breaker is open",
            )


def _of_anomalies(seen: Seen) -> Iterator[OverviewFinding]:
    for one in seen.status.anomalies:
        is_queue = one.kind is Kind.QUEUE
        yield OverviewFinding(
            "attention",
            one.describe(),
            "See whether its consumers, or what they depend on, work. This ends by itself.",
            *(f"/retries?{urlencode({'queue' if is_queue else 'policy': one.name})}", "Its retries"),
            "Retries fail more often than usual",
        )


def _page_of(paused: DestinationPause) -> tuple[str, str]:
    """Policies and job types have no page of their own."""
    if not paused.is_destination:
        return "/destinations", "Open the destinations"
    return f"/destinations/one?{urlencode({'name': paused.destination})}", f"Open {_short(paused.destination)}"


def _short(name: str) -> str:
    return name if len(name) <= SHORT else f"{name[: SHORT - 1]}…"


def _of_attachments(seen: Seen) -> Iterator[OverviewFinding]:
    for one in seen.status.attachments:
        if one.state != "ok":
            what = f"{one.name} is not attached as it should be: {one.detail}"
            yield OverviewFinding("wrong", what, "See the runbook.", None, None, "Rejects do not reach tarry")


def _number(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"
