"""In a terminal of 80 columns every id and name that a person copies is shown whole, on one line."""

from __future__ import annotations

import io
from collections.abc import Callable
from datetime import UTC, datetime

import pytest
from rich.console import Console

from tarry.attach.listing import Attachment
from tarry.attach.listing import AttachmentState as Attached
from tarry.audit.status import InTier
from tarry.audit.verdict import Missing, Open
from tarry.cli import actions, attach_view, audit_view, control_view, output, review_view, status
from tarry.core.names import Destination
from tarry.operations.lookup import ActionRow
from tarry.operations.paging import Page
from tarry.operations.pause import DestinationPause, PauseView
from tarry.operations.review.browse import Group, ReviewItem
from tarry.operations.review.jobs import JobStatus
from tarry.operations.review.reconcile import QueueComparison, UnknownMessage

WIDTH = 80
NOW = datetime.now(UTC)
RETRY = "5f0c1d7e-0b1a-5c3d-9e2f-0123456789ab"
JOB = "77ab2c1d-0b1a-4c3d-9e2f-0123456789ab"
MESSAGE = "order-2030-01-31-4711-and-some-more-so-that-it-is-long"
QUEUE = "a.queue.with-a-long-name.of-the-kind-that.is-not-rare.eu-west"
PRINT = "9c1e0123456789ab"
LONG = "an error text of the usual length, with a number or two and a name in it, such as 4711 or alice"


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    file = io.StringIO()
    monkeypatch.setattr(
        output, "out", Console(file=file, width=WIDTH, force_terminal=True, color_system=None, soft_wrap=True)
    )
    return file.getvalue


def item() -> ReviewItem:
    return ReviewItem(
        RETRY,
        MESSAGE,
        QUEUE,
        3,
        3,
        3,
        "default",
        "retryable",
        "Timeout",
        LONG,
        PRINT,
        "retries are used up",
        NOW,
        NOW,
        10,
        "acme",
    )


def job() -> JobStatus:
    numbers = {"total": 120_000, "left": 1, "done": 119_000, "gone": 2, "failed": 3, "skipped": 4, "unconfirmed": 5}
    return JobStatus(
        JOB, "redrive", "alice@a-host.example", "running", NOW, NOW, None, {}, {}, None, None, "x", 1, **numbers,
        speed=1.0, eta_seconds=9.0, problem=None,
    )  # fmt: skip


def open_retry() -> Missing:
    return Missing(Open(RETRY, 1, MESSAGE, QUEUE, "", "scheduled", "retry.delay.8s", NOW, rebuildable=True), LONG)


def test_review_list_shows_ids_whole(terminal: Callable[[], str]) -> None:
    review_view.show_page(Page([item(), item()], None))
    whole(terminal(), RETRY, MESSAGE, QUEUE)


@pytest.mark.parametrize(("by", "key"), [("fingerprint", PRINT), ("queue", QUEUE)])
def test_review_groups_show_keys_whole(terminal: Callable[[], str], by: str, key: str) -> None:
    review_view.show_groups(by, [Group(key, 12_000, NOW, NOW, 1, QUEUE, "Timeout", LONG, LONG)])
    whole(terminal(), key)


def test_review_jobs_show_ids_whole(terminal: Callable[[], str]) -> None:
    review_view.show_jobs([job(), job()])
    whole(terminal(), JOB)


def test_review_check_shows_ids_whole(terminal: Callable[[], str]) -> None:
    stranger = UnknownMessage("moved on", "returned in round 3", (RETRY, 3), MESSAGE, QUEUE, LONG)
    review_view.show_checked(QueueComparison(1, 1, (stranger,), ((RETRY, 1),), 0, 0), "the review queue")
    whole(terminal(), RETRY, MESSAGE, QUEUE)


def test_audit_verify_shows_ids_whole(terminal: Callable[[], str]) -> None:
    audit_view.show_missing([open_retry()])
    whole(terminal(), RETRY, MESSAGE, QUEUE)


def test_pauses_show_destinations_whole(terminal: Callable[[], str]) -> None:
    wish = PauseView(QUEUE, "alice@a-host.example", LONG, NOW, NOW)
    control_view._show_table([DestinationPause(QUEUE, "holding", NOW, 12_000, 12_000, 0, None, "", None, None, [wish])])
    whole(terminal(), QUEUE)


def test_actions_show_targets_whole(terminal: Callable[[], str]) -> None:
    actions.show(
        [ActionRow(RETRY, NOW, "alice@a-host.example", "retry_now", RETRY, {"reason": LONG}, {"error": LONG}, NOW)]
    )
    whole(terminal(), RETRY)


def test_attachments_show_names_whole(terminal: Callable[[], str]) -> None:
    attach_view.show_attachments([Attachment(Destination("queue", QUEUE), Attached.DRIFTED, LONG, "their-policy")])
    whole(terminal(), QUEUE)


def test_status_shows_queues_whole(terminal: Callable[[], str]) -> None:
    status._show(None, [InTier(QUEUE, 12_000, 12_000, NOW, NOW)], {QUEUE: 1})
    whole(terminal(), QUEUE)


def whole(shown: str, *names: str) -> None:
    lines = shown.splitlines()
    for name in names:
        assert any(name in line for line in lines), shown
    assert max(map(len, lines)) <= WIDTH, shown


def test_a_table_that_fits_stays_a_table(terminal: Callable[[], str]) -> None:
    made = output.table("ids", "retry id", "number", right=("number",), copied=("retry id",))
    made.add_row(RETRY, "1")
    output.print_table(made)
    assert terminal().splitlines()[:3] == ["ids".ljust(44), f"{'retry id':36}  number", f"{RETRY}       1"]


def test_a_name_longer_than_the_terminal_is_not_cut(terminal: Callable[[], str]) -> None:
    made = output.table("", "queue", "why", copied=("queue",))
    made.add_row("q" * 200, LONG)
    output.print_table(made)
    assert "q" * 200 in terminal().replace("\n", "")
    assert "…" not in terminal()
