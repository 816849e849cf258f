"""The demo's picture and its plain line, from one made-up moment."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from rich.console import Console, RenderableType

from tarry.demo.view import Scene, line, screen, summary
from tarry.demo.workload import PLAN, Tally, expected_done, expected_in_review
from tarry.store.rows import Balance, Drift, ReviewedRow, WaitingRow

NOW = datetime.now(UTC)
COUNTS = {"retries": 3, "scheduled": 2, "returned": 1, "in_review": 1, "waiting": 1}
REST = {"claimed": 0, "unroutable": 0, "duplicates": 0, "overdue": 0}
SCENE = Scene(
    tiers=[("retry.delay.2s", 1), ("retry.delay.4s", 0)],
    ladder=0,
    review=1,
    waiting=[WaitingRow("demo.invoices", "retry.delay.2s", NOW + timedelta(hours=2), 1, 3, "invoice-007")],
    in_review=[ReviewedRow("demo.invoices", "invoice-009", "exhausted: 3 of 3 retries spent", NOW)],
    balance=Balance(**COUNTS, **REST),
)


def drawn(what: RenderableType) -> str:
    console = Console(width=120, record=True, file=None, quiet=False)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


def test_the_picture_names_tiers_who_waits_and_who_is_in_review() -> None:
    text = drawn(screen(SCENE, Tally(sent=5, done=2, rejected=2), "RabbitMQ 4.3"))
    assert "retry.delay.2s" in text
    assert "invoice-007" in text
    assert "1 of 3" in text
    assert re.search(r"\b1h \d+m", text), "what is left, from when this file was read"
    assert "exhausted: 3 of 3 retries spent" in text


def test_an_empty_moment_is_drawn_as_high_as_a_full_one() -> None:
    empty = Scene(SCENE.tiers, 0, 0, [], [], SCENE.balance)
    full = drawn(screen(SCENE, Tally(), "x")).count("\n")
    assert drawn(screen(empty, Tally(), "x")).count("\n") == full


def test_the_plain_line_has_the_same_facts() -> None:
    due = f"{SCENE.waiting[0].due:%H:%M:%S}"
    assert line(SCENE, Tally(sent=5, done=2)) == (
        "sent 5, done 2, in review 1; waiting 1 (tiers 2s:1 4s:0 ladder:0); "
        f"next invoice-007 for demo.invoices at {due}"
    )


def test_the_summary_says_what_is_lost() -> None:
    console = Console(width=120)
    with console.capture() as captured:
        missing = Balance(**COUNTS, **REST | {"overdue": 1})
        tally = Tally(done=3)
        tally.by_attempt.update({0: 2, 1: 1})
        summary(console, missing, Drift(1, 4, 12, 30, 31), tally)
    text = captured.get()
    assert "balance: scheduled 2, returned 1, in review 1, lost 1" in text
    assert "p50 12 ms, p99 30 ms, most 31 ms; earliest +4 ms after due" in text
    assert "succeeded: 3 (2 at attempt 1, 1 at attempt 2)" in text


def test_every_invoice_of_the_plan_is_expected_somewhere() -> None:
    assert expected_done() + expected_in_review() == sum(PLAN.values())
