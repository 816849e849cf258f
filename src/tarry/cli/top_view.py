"""The screen of `tarry top`: a snapshot as lines that fit a terminal, as plain text without a limit, or as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from typing import Any

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from tarry.audit.status import InTier, RouterStatus
from tarry.cli.audit_view import balance_report
from tarry.cli.control_view import plain
from tarry.cli.status import status_report
from tarry.core.durations import humanise
from tarry.core.printable import printable
from tarry.operations.audit import BalanceReport
from tarry.operations.breaker import BreakerView
from tarry.operations.overview import Activity, DestinationNumbers
from tarry.operations.pause import DestinationPause, Pauses
from tarry.operations.status import ServiceStatus
from tarry.operations.verdict import Level, OverviewFinding, OverviewVerdict, Seen, judge

STYLES: dict[Level, str] = {"ok": "green", "attention": "yellow", "wrong": "red"}
MARKS: dict[Level, str] = {"ok": "✓", "attention": "!", "wrong": "✗"}
UNKNOWN = "?"
"""Shown for what could not be read."""


@dataclass(frozen=True, slots=True)
class TopTotals:
    """The totals of the audit, which are read less often than the rest."""

    report: BalanceReport | None
    at: datetime
    trouble: str = ""
    """Why they could not be read."""


@dataclass(frozen=True, slots=True)
class TopSnapshot:
    """What was read at one moment. None: it could not be read, and `troubles` says why."""

    at: datetime
    status: ServiceStatus | None = None
    activity: Activity | None = None
    pauses: Pauses | None = None
    breakers: list[BreakerView] | None = None
    destinations: list[DestinationNumbers] | None = None
    stuck: int | None = None
    troubles: list[str] = field(default_factory=list)

    @property
    def all_troubles(self) -> list[str]:
        of_status = self.status.troubles if self.status else []
        return list(dict.fromkeys([*of_status, *self.troubles]))


@dataclass(frozen=True, slots=True)
class Display:
    """How the screen is shown."""

    width: int
    height: int = 0
    """0 for no limit."""
    every: float = 0.0
    """Seconds between two readings; 0 for a single snapshot."""
    in_ascii: bool = False
    has_keys: bool = False


def snapshot_json(seen: TopSnapshot, totals: TopTotals) -> dict[str, Any]:
    verdict = judged(seen, totals)
    found = [{"level": one.level, "what": one.what, "do": one.do} for one in verdict.findings]
    report = totals.report
    answer = {
        "at": seen.at,
        "verdict": {"level": verdict.level, "title": verdict.title, "findings": found},
        "audit": None
        if report is None
        else {"balance": balance_report(report.balance), "drift_ms": asdict(report.drift)},
        "status": None if seen.status is None else status_report(seen.status),
        "activity": None if seen.activity is None else asdict(seen.activity),
        "destinations": _dicts(seen.destinations),
        "pauses": None if seen.pauses is None else asdict(seen.pauses),
        "breakers": _dicts(seen.breakers),
        "stuck": seen.stuck,
        "troubles": seen.all_troubles,
    }
    return dict(plain(answer))


def _dicts(found: Sequence[Any] | None) -> list[dict[str, Any]] | None:
    return None if found is None else [asdict(one) for one in found]


NOTHING_READ = ServiceStatus(None, None, [], {}, [], [], [], [])


def judged(seen: TopSnapshot, totals: TopTotals) -> OverviewVerdict:
    """As on the dashboard's overview; and retries that the totals of the audit do not account for."""
    status = seen.status or NOTHING_READ
    breakers = seen.breakers or []
    verdict = judge(Seen(status, seen.activity, seen.pauses, seen.stuck, None, breakers, seen.troubles))
    lost = totals.report.balance.lost - totals.report.balance.overdue if totals.report else 0
    if not lost:
        return verdict
    what = f"{lost:,} {'round is' if lost == 1 else 'rounds are'} unaccounted for in the audit"
    finding = OverviewFinding("wrong", what, "tarry audit verify", None, None, "Something is missing")
    return OverviewVerdict("wrong", "Something is wrong", [finding, *verdict.findings])


# The lines


TWO_COLUMNS = 120
"""From this width on there are two columns of sections."""
GAP = 3
LEFT = 62
UNLIMITED = 10_000
MOST_FINDINGS = 8
LEAST_FINDINGS = 3


def screen(seen: TopSnapshot | None, totals: TopTotals, display: Display, now: datetime) -> Text:
    """As many lines as fit."""
    title = _title(seen, display, now)
    if seen is None:
        return _joined([title, Text(), Text("Reading …", style="dim")], display)
    top = [title, *_heading(seen, totals, display, now)]
    sections = list(_sections(seen, now))
    room = display.height - len(top) if display.height else sum(len(one.rows) + LEAST for one in sections)
    return _joined([*top, *_arranged(sections, display, room)], display)


def _arranged(sections: Sequence[Section], display: Display, room: int) -> list[Text]:
    """In two columns if the screen is limited and wide."""
    width = display.width
    if width < TWO_COLUMNS or not display.height:
        return stacked(sections, width, room)
    left = min(LEFT, (width - GAP) * 9 // 20)
    tiers, others = ([one for one in sections if one.is_left is side] for side in (True, False))
    return beside(stacked(tiers, left, room), stacked(others, width - GAP - left, room), left)


def _joined(lines: Sequence[Text], display: Display) -> Text:
    """Without a limit of lines, messages are whole: the terminal wraps them."""
    shown = lines[: display.height or None]
    if display.height:
        for one in shown:
            one.truncate(display.width, overflow="ellipsis")
    return Text("\n", no_wrap=True, overflow="crop", end="").join(shown)


LATE = 5
"""A reading that is due for more than this many seconds is pointed out."""


def _title(seen: TopSnapshot | None, display: Display, now: datetime) -> Text:
    left = Text.assemble(("tarry top", "bold"), f"  {now:%Y-%m-%d %H:%M:%S} UTC")
    if display.every:
        left.append(f"  every {humanise(display.every * 1000)}", "dim")
    right = Text("q quits" if display.has_keys else "", style="dim")
    silent = (now - seen.at).total_seconds() if seen and display.every else 0.0
    if silent > LATE + display.every:
        right = Text(f"no answer for {_span(timedelta(seconds=silent))}", style="bold red")
    return Text.assemble(left, " " * max(2, display.width - left.cell_len - right.cell_len), right) if right else left


def _heading(seen: TopSnapshot, totals: TopTotals, display: Display, now: datetime) -> Iterator[Text]:
    """The verdict with its findings, the totals, the drift, and what is due."""
    verdict = judged(seen, totals)
    yield Text(f"{MARKS[verdict.level]} {verdict.title}", style=f"bold {STYLES[verdict.level]}")
    yield from _findings(verdict, display.height)
    yield _audit(seen, totals, now)
    yield from _packed(_counts(seen), display.width)
    yield from _packed(_speed(seen), display.width)
    if seen.activity is not None:
        yield from due_lines(seen.activity, in_ascii=display.in_ascii)
    yield Text()


def _findings(verdict: OverviewVerdict, height: int) -> Iterator[Text]:
    most = max(LEAST_FINDINGS, min(MOST_FINDINGS, height // 8)) if height else len(verdict.findings)
    shown = verdict.findings if len(verdict.findings) <= most else verdict.findings[: most - 1]
    for one in shown:
        yield Text.assemble((f"  {MARKS[one.level]} ", STYLES[one.level]), printable(one.what))
    if hidden := len(verdict.findings) - len(shown):
        yield Text(f"  … and {hidden} more: see tarry top --once", style="dim")


def _audit(seen: TopSnapshot, totals: TopTotals, now: datetime) -> Text:
    if totals.report is None:
        reason = "" if totals.trouble in seen.all_troubles else totals.trouble
        return Text(f"audit: {printable(reason) or 'not known'}")
    balance = totals.report.balance
    lost = (f"lost {balance.lost:,}", "bold red" if balance.lost else "green")
    return Text.assemble("audit: ", lost, f" of {balance.requests:,} requests", (f"  {_ago(totals.at, now)}", "dim"))


def _counts(seen: TopSnapshot) -> Iterator[Text]:
    counts = seen.status.audit if seen.status else None
    if counts is None:
        return
    yield Text(f"waiting {counts.waiting:,}")
    for name, number, style in (
        ("overdue", counts.overdue, "red"),
        ("in review", counts.in_review, "yellow"),
        ("held", counts.held, "yellow"),
        ("unroutable", counts.unroutable, "red"),
        ("stuck", seen.stuck, "yellow"),
    ):
        yield Text(f"{name} {_number(number)}", style=style if number else "")


def _speed(seen: TopSnapshot) -> Iterator[Text]:
    if seen.status is not None and seen.status.routers:
        yield Text(f"requests {sum(one.rate for one in seen.status.routers if one.reports):,.1f}/s")
    if seen.status is not None and seen.status.events is not None:
        yield Text(f"events {seen.status.events.published:,}")
    if seen.activity is None:
        return
    activity = seen.activity
    yield Text(f"returned in 5 minutes {activity.returned:,}")
    if activity.drift_p50_ms is not None:
        figures = (("p50", activity.drift_p50_ms), ("p99", activity.drift_p99_ms), ("most", activity.drift_most_ms))
        yield Text("drift " + " ".join(f"{name} {humanise(ms)}" for name, ms in figures if ms is not None))


def _packed(parts: Iterator[Text], width: int) -> Iterator[Text]:
    """As many on a line as fit."""
    line = Text()
    for part in parts:
        if line.cell_len and line.cell_len + 2 + part.cell_len > width:
            yield line
            line = Text()
        line = Text.assemble(line, "  " if line.cell_len else "", part)
    if line.cell_len:
        yield line


BLOCKS = " ▁▂▃▄▅▆▇█"
IN_ASCII = " .:-=+*#@"
SUMS = (1, 5, 15, 60)


def due_lines(activity: Activity, *, in_ascii: bool = False) -> list[Text]:
    """The returns due in each minute of the next hour as a bar each, and in the next minutes."""
    sums = "  ".join(f"{minutes}m {sum(activity.due[:minutes]):,}" for minutes in SUMS)
    return [
        Text.assemble("due in the next  ", sums),
        Text.assemble(("now ", "dim"), (bars(activity.due, in_ascii=in_ascii), "cyan"), (" in 1h", "dim")),
    ]


def bars(numbers: Sequence[int], *, in_ascii: bool = False) -> str:
    """One character for each number; any number above 0 is visible."""
    steps, most = (IN_ASCII if in_ascii else BLOCKS), max(numbers, default=0)
    return "".join(steps[-(-number * (len(steps) - 1) // most)] if most else steps[0] for number in numbers)


# Sections: tables of which as many rows are shown as fit


@dataclass(frozen=True, slots=True)
class TopRow:
    """The cells of one row."""

    cells: tuple[str, ...]
    style: str = ""


NARROW = 16
"""A name is not cut to less than this for a longer text in the last column."""


@dataclass(frozen=True, slots=True)
class Section:
    """A table; its first column gets shorter if there is no room, and before it the last one if that is a text."""

    title: str
    columns: tuple[str, ...]
    rows: list[TopRow]
    right: frozenset[str] = frozenset()
    """Columns of numbers."""
    is_left: bool = False

    def lines(self, width: int, most: int) -> list[Text]:
        """Its header and rows: `most` lines at most."""
        shown = self.rows if len(self.rows) < most else self.rows[: most - 2]
        widths = self._widths(width, shown)
        found = [Text(self._line((self.title, *self.columns), widths), style="bold")]
        found += [Text(self._line(row.cells, widths), style=row.style) for row in shown]
        if hidden := len(self.rows) - len(shown):
            found.append(Text(f"… and {hidden:,} more", style="dim"))
        return found

    def _widths(self, width: int, shown: Sequence[TopRow]) -> list[int]:
        """Numbers are never cut."""
        cells = [(self.title, *self.columns), *(row.cells for row in shown)]
        natural = [max(cell_len(one[at]) for one in cells) for at in range(len(self.columns) + 1)]
        name, *middle, last = natural
        left = width - sum(middle) - 2 * len(self.columns)
        if self.columns[-1] in self.right:
            return [max(cell_len(self.title), min(name, left - last)), *middle, last]
        name = max(cell_len(self.title), min(name, max(NARROW, left // 2, left - last)))
        return [name, *middle, max(0, min(last, left - name))]

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        first, *others = cells
        found = [fitted(first, widths[0])]
        for name, cell, room in zip(self.columns, others, widths[1:], strict=True):
            found.append(" " * (room - cell_len(cell)) + cell if name in self.right else cut(cell, room))
        return "  ".join(found).rstrip()


def cut(text: str, width: int) -> str:
    """In exactly this many columns."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    return set_cell_size(text, max(0, width - 1)) + "…" * bool(width)


def fitted(text: str, width: int) -> str:
    """In exactly this many columns; if it is cut, its end stays, in which names of queues differ."""
    if cell_len(text) <= width:
        return set_cell_size(text, width)
    keep = max(0, width - 1)
    head = keep // 3
    tail = keep - head
    return set_cell_size(f"{text[:head]}…{text[len(text) - tail :]}", width)


def stacked(sections: Sequence[Section], width: int, room: int) -> list[Text]:
    """One below the other; with empty lines between them if all rows fit."""
    needs = [len(one.rows) + 1 for one in sections]
    is_airy = sum(needs) + len(sections) - 1 <= room
    found: list[Text] = []
    for section, lines in zip(sections, shares(needs, room), strict=True):
        if lines:
            found += [Text()] if is_airy and found else []
            found += section.lines(width, lines)
    return found


LEAST = 2
"""Lines of a section: its header and a row."""


def shares(needs: Sequence[int], room: int) -> list[int]:
    """How many lines each gets: the first ones their least, then one more in turn as long as there is room."""
    found = [0] * len(needs)
    for at, need in enumerate(needs):
        found[at] = min(need, LEAST) if sum(found) + min(need, LEAST) <= room else 0
    while (left := room - sum(found)) > 0:
        wanting = [at for at, need in enumerate(needs) if 0 < found[at] < need]
        if not wanting:
            break
        for at in wanting[:left]:
            found[at] += 1
    return found


def beside(left: Sequence[Text], right: Sequence[Text], width: int) -> list[Text]:
    """Two columns, the first of this width."""
    return [
        Text.assemble(one, " " * (width + GAP - one.cell_len), other)
        for one, other in zip_longest(left, right, fillvalue=Text())
    ]


def _sections(seen: TopSnapshot, now: datetime) -> Iterator[Section]:
    """Those that have rows, the most important first."""
    found = (
        _tiers(seen.status.tiers if seen.status else [], now),
        _destinations(seen.destinations or []),
        _pauses(seen.pauses, now),
        _breakers(seen.breakers or [], now),
        _routers(seen.status.routers if seen.status else [], now),
    )
    return (one for one in found if one.rows)


def _tiers(found: Sequence[InTier], now: datetime) -> Section:
    """The next due first."""
    columns = ("depth", "in audit", "next due", "oldest")
    rows = []
    for one in sorted(found, key=_due_first):
        times = (_ahead(one.next_due, now), _ago(one.oldest, now))
        rows.append(TopRow((printable(one.tier), _number(one.depth), _number(one.open), *times)))
    return Section("TIERS", columns, rows, frozenset(columns), is_left=True)


def _due_first(tier: InTier) -> tuple[bool, datetime, str]:
    return (tier.next_due is None, tier.next_due or datetime.min.replace(tzinfo=UTC), tier.tier)


def _destinations(found: Sequence[DestinationNumbers]) -> Section:
    """Those with the most retries first. Columns of which nothing is known, or nothing is there, are left out."""
    has_rates = any(one.rate_in is not None or one.rate_out is not None for one in found)
    has_unroutable = any(one.unroutable for one in found)
    columns = ("depth", *["in/s", "out/s"] * has_rates, "waiting", "held", "review", *["unroutable"] * has_unroutable)
    rows = []
    for one in sorted(found, key=lambda one: (-_open(one), one.name)):
        rates = [_rate(one.rate_in), _rate(one.rate_out)] * has_rates
        counts = (one.waiting, one.held, one.in_review, *[one.unroutable] * has_unroutable)
        style = "red" if one.unroutable else "yellow" if one.held else ""
        rows.append(TopRow((printable(one.name), _number(one.depth), *rates, *map(_number, counts)), style))
    return Section("DESTINATIONS", columns, rows, frozenset(columns))


def _open(one: DestinationNumbers) -> int:
    return one.waiting + one.held + one.in_review + one.unroutable


def _pauses(found: Pauses | None, now: datetime) -> Section:
    rows = [_paused(one, now) for one in found.paused_destinations] if found else []
    if found and found.intake.paused:
        intake = found.intake
        rows.insert(
            0, TopRow(("the intake", "paused", _ago(intake.at, now), "", _why(intake.actor, intake.reason)), "yellow")
        )
    return Section("PAUSES", ("state", "since", "held", "by"), rows, frozenset({"since", "held"}))


def _paused(one: DestinationPause, now: datetime) -> TopRow:
    held = _number(one.held if one.depth is None else one.depth)
    by = one.problem or next((_why(pause.actor, pause.reason) for pause in one.pauses), "")
    state = one.state.replace("_", " ") if one.rate is None else f"{one.state} {one.rate}/s"
    return TopRow((printable(one.destination), state, _ago(one.since, now), held, printable(by)), "yellow")


def _why(actor: str | None, reason: str | None) -> str:
    return printable(f"{actor or ''}: {reason}" if reason else actor or "")


def _breakers(found: Sequence[BreakerView], now: datetime) -> Section:
    """Those that are not closed first, then those with failures."""
    rows = [
        TopRow(
            (
                printable(one.queue),
                one.state.replace("_", "-"),
                f"{one.failed:,} of {one.returned:,}",
                _ahead(one.probe_at, now),
                printable(one.reason),
            ),
            _BREAKER_STYLES.get(one.state, "yellow"),
        )
        for one in sorted(found, key=lambda one: (one.state == "closed", -one.share, one.queue))
    ]
    return Section("BREAKERS", ("state", "failed", "probe", "why"), rows, frozenset({"failed", "probe"}))


_BREAKER_STYLES = {"open": "red", "closed": ""}


def _routers(found: Sequence[RouterStatus], now: datetime) -> Section:
    rows = []
    for one in found:
        state = "leader" if one.leader else ""
        style = ""
        if one.troubles:
            state, style = printable(one.troubles[0]), "yellow"
        if not one.reports:
            state, style = f"stopped reporting {_ago(one.last_report, now)}", "red"
        rows.append(TopRow((printable(one.id), f"{one.rate:,.1f}", one.version, _ago(one.since, now), state), style))
    return Section("ROUTERS", ("req/s", "version", "started", ""), rows, frozenset({"req/s", "started"}))


def _number(number: int | None) -> str:
    return UNKNOWN if number is None else f"{number:,}"


def _rate(rate: float | None) -> str:
    return UNKNOWN if rate is None else f"{rate:,.1f}"


def _ago(at: datetime | None, now: datetime) -> str:
    return "" if at is None else f"{_span(now - at)} ago"


def _ahead(at: datetime | None, now: datetime) -> str:
    if at is None:
        return ""
    return f"in {_span(at - now)}" if at >= now else f"{_span(now - at)} ago"


def _span(length: timedelta) -> str:
    return humanise(max(1, round(length.total_seconds())) * 1000)
