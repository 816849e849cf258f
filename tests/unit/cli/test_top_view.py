"""The screen of `tarry top` fits its terminal, shows first what needs somebody, and tells what is not known."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tarry.audit.status import Counts, InTier, RouterStatus
from tarry.cli.top_view import Display, TopSnapshot, TopTotals, bars, fitted, screen, shares, snapshot_json
from tarry.core.breaker import BreakerState
from tarry.operations.audit import BalanceReport
from tarry.operations.breaker import BreakerView
from tarry.operations.intake import Intake
from tarry.operations.overview import Activity, DestinationNumbers
from tarry.operations.pause import DestinationPause, Pauses, PauseView
from tarry.operations.status import ServiceStatus
from tarry.store.rows import Balance, Drift

NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)
EARLIER = NOW - timedelta(seconds=75)
LONG = "notifications.push.europe-west.with-a-name-that-is-very-long-indeed"
COUNTS = Counts(1_234, 12, 400, 3, 42, 0, 0, 0, 44)
BALANCE = Balance(5_000, 4_990, 3_700, 3, 1_234, 0, 0, 10, 0, held=42, rounds=4_979)
TOTALS = TopTotals(BalanceReport(BALANCE, Drift(3_700, 1, 12, 80, 120)), NOW - timedelta(seconds=8))
UNKNOWN = TopTotals(None, NOW, "Postgres does not answer.")
SIZES = [(80, 24), (140, 40), (200, 60), (40, 12), (20, 5), (10, 1)]


def tiers(count: int) -> list[InTier]:
    return [InTier(f"retry.delay.{at}m", 10, 12, EARLIER, NOW + timedelta(minutes=at)) for at in range(1, count + 1)]


def breaker(queue: str, state: BreakerState = BreakerState.OPEN) -> BreakerView:
    probe = NOW + timedelta(seconds=30)
    numbers = {"returned": 20, "failed": 18, "share": 0.9, "wait_s": 30.0}
    who = {"forced_by": None, "forced_reason": None, "forced_until": None}
    rest = {"policy": "default", "rule": "", "reason": "18 of 20 failed again", "rate": None, "problem": None}
    return BreakerView(queue=queue, state=state, since=EARLIER, probe_at=probe, **numbers, **who, **rest)  # type: ignore[arg-type]


def snapshot(names: tuple[str, ...] = ("orders", LONG), count: int = 19) -> TopSnapshot:
    """Something in every section."""
    router = RouterStatus("web-1-4711-3fa1b2", "web-1", 4711, "1.2.3", EARLIER, NOW, True, 26.1, [], True)
    why = PauseView("payments", "ops", "the bank is down", EARLIER, None)
    paused = DestinationPause("payments", "holding", EARLIER, 42, 42, 0, None, "", None, None, [why])
    return TopSnapshot(
        at=NOW,
        status=ServiceStatus(None, COUNTS, tiers(count), {}, [], [], [router], []),
        activity=Activity([30, 10, *[1] * 58], [0] * 60, 512, 12, 80, 120),
        pauses=Pauses([paused], [why], Intake(paused=False)),
        breakers=[breaker("payments"), breaker("bills", BreakerState.CLOSED)],
        destinations=[DestinationNumbers(name, 5, 40 - at, 0, 1, 0) for at, name in enumerate(names)],
        stuck=0,
    )


def lines(
    seen: TopSnapshot | None, totals: TopTotals = TOTALS, size: tuple[int, int] = (80, 24), every: float = 2
) -> list[str]:
    return screen(seen, totals, Display(*size, every), NOW).plain.split("\n")


@pytest.mark.parametrize("size", SIZES)
def test_screen_has_at_most_the_lines_and_columns_of_the_terminal(size: tuple[int, int]) -> None:
    for seen in (snapshot(), snapshot(tuple(f"{LONG}-{at}" for at in range(300)), 100), None):
        shown = lines(seen, size=size)
        assert len(shown) <= size[1]
        assert max(map(len, shown)) <= size[0]


@pytest.mark.parametrize("size", [(80, 24), (140, 40)])
def test_screen_has_every_section_at_usual_sizes(size: tuple[int, int]) -> None:
    shown = "\n".join(lines(snapshot(), size=size))
    for part in (
        "TIERS",
        "DESTINATIONS",
        "PAUSES",
        "BREAKERS",
        "ROUTERS",
        "retry.delay.1m",
        "due in the next",
        "p99 80ms",
    ):
        assert part in shown, shown
    assert "… and 1" in "\n".join(lines(snapshot(), size=(80, 24)))


def test_screen_in_two_columns_begins_both_on_one_line() -> None:
    assert [one for one in lines(snapshot(), size=(140, 40)) if "TIERS" in one and "DESTINATIONS" in one]


def test_screen_without_a_limit_has_all_rows() -> None:
    shown = "\n".join(lines(snapshot(count=100), size=(80, 0), every=0))
    assert all(f"retry.delay.{at}m " in shown for at in range(1, 101))
    assert "more" not in shown


def test_screen_without_a_limit_has_tables_as_wide_as_the_terminal_and_whole_messages() -> None:
    trouble = "Postgres does not answer: " + "x" * 100
    shown = lines(replace(snapshot(count=100), troubles=[trouble]), size=(80, 0), every=0)
    assert any(one.endswith(trouble) for one in shown)
    [destination] = [one for one in shown if "…" in one and one.startswith("notifications")]
    assert (len(destination) <= 80, destination.split()[1:]) == (True, ["5", "39", "0", "1"])


def test_screen_says_first_what_is_wrong() -> None:
    shown = lines(snapshot())
    assert shown[1] == "✗ Something is wrong"
    assert "payments: its breaker is open" in shown[2]


def test_screen_shows_what_the_audit_does_not_account_for() -> None:
    lost = TopTotals(BalanceReport(replace(BALANCE, returned=3_690), Drift(0, 0, 0, 0, 0)), NOW)
    shown = lines(snapshot(), lost)
    assert "10 rounds are unaccounted for in the audit" in shown[2]
    assert any(one.startswith("audit: lost 10 of 4,989 requests") for one in shown)
    assert any(one.startswith("audit: lost 0 of 4,989 requests  8s ago") for one in lines(snapshot()))


def test_screen_names_what_could_not_be_read_and_shows_the_rest() -> None:
    status = ServiceStatus(
        None, None, [InTier("retry.delay.1m", None, 7, None, None)], {}, [], [], [], [UNKNOWN.trouble]
    )
    shown = lines(TopSnapshot(NOW, status, troubles=[UNKNOWN.trouble]), UNKNOWN)
    assert [one for one in shown if UNKNOWN.trouble in one] == [f"  ✗ {UNKNOWN.trouble}"]
    assert "audit: not known" in shown
    assert any(one.split() == ["retry.delay.1m", "7", "?"] for one in shown)


def test_screen_tells_how_long_there_was_no_answer() -> None:
    assert lines(replace(snapshot(), at=EARLIER))[0].endswith("no answer for 1m 15s")
    assert "no answer" not in lines(replace(snapshot(), at=NOW - timedelta(seconds=6)))[0]


def test_screen_before_the_first_answer_says_that_it_reads() -> None:
    assert lines(None)[2] == "Reading …"


def test_screen_escapes_names_from_outside() -> None:
    shown = "\n".join(lines(snapshot(("evil\x1b[2J\nqueue",))))
    assert r"evil\x1b[2J\x0aqueue" in shown
    assert "\x1b" not in shown


def test_names_that_are_cut_keep_their_end() -> None:
    assert fitted("orders.eu.priority.very-long", 12) == "ord…ery-long"
    assert fitted("orders", 8) == "orders  "


def test_rows_are_shared_in_turn_and_the_first_sections_come_first() -> None:
    assert shares([20, 10, 3], 12) == [5, 4, 3]
    assert shares([20, 10, 3], 5) == [3, 2, 0]
    assert shares([2, 2], 40) == [2, 2]
    assert shares([5], 1) == [0]


def test_bars_show_any_number_above_zero() -> None:
    assert bars([0, 1, 800, 400]) == " ▁█▄"
    assert bars([0, 0]) == "  "
    assert bars([0, 1, 8], in_ascii=True).isascii()


def test_json_has_the_verdict_and_every_part() -> None:
    found = json.loads(json.dumps(snapshot_json(snapshot(), TOTALS)))
    assert (found["verdict"]["level"], found["audit"]["balance"]["lost"], found["troubles"]) == ("wrong", 0, [])
    assert (found["status"]["tiers"][0]["tier"], found["breakers"][0]["state"]) == ("retry.delay.1m", "open")
    assert (found["destinations"][1]["name"], found["pauses"]["paused_destinations"][0]["held"]) == (LONG, 42)
    nothing = snapshot_json(TopSnapshot(NOW, troubles=["no answer"]), UNKNOWN)
    assert (nothing["status"], nothing["audit"], nothing["troubles"]) == (None, None, ["no answer"])
