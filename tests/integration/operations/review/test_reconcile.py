"""The queue and the store may differ for several reasons: a check names each and can repair it."""

from __future__ import annotations

import json
import stat
from datetime import timedelta
from pathlib import Path

import pytest

from tarry.amqp.field_tables import table
from tarry.amqp.properties import Properties
from tarry.errors import SettingsError
from tarry.operations.review import reconcile as checks
from tarry.operations.review.browse import Filter, summary
from tarry.operations.review.export import export
from tarry.operations.review.reconcile import QueueComparison, adopt, check, close_gone, remove_leftovers
from tests.integration.operations.review.reviewing import (
    REVIEW,
    Reviewer,
    history,
    in_review,
    put_in_review,
    row_of,
    send_to_review,
)
from tests.support.installation import Installation
from tests.support.waiting import wait_for

ELSEWHERE = "6f1c0a3e-0000-4000-8000-000000000001"
SPOOLED = {"tarry-id": ELSEWHERE, "tarry-round": 2, "tarry-queue": "orders", "review_reason": "exhausted"}


@pytest.fixture(autouse=True)
def _judges_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What went to review a moment ago is judged too."""
    monkeypatch.setattr(checks, "FRESH", timedelta(0))


def looked(reviewer: Reviewer) -> QueueComparison:
    return reviewer.do(check)


def test_each_difference_is_named_and_nothing_is_taken(installation: Installation) -> None:
    send_to_review(installation, installation.declare("orders"), ["a", "b", "c"])
    reviewer = Reviewer(installation)
    assert not looked(reviewer).differs
    installation.get(REVIEW)  # somebody else takes one
    put_in_review(
        installation,
        [
            (Properties(message_id=b"mine", headers=table({"a": 1})), b"by hand"),
            (Properties(headers=table(SPOOLED)), b"spooled"),
        ],
    )
    found = looked(reviewer)
    assert (found.seen, found.in_audit, len(found.gone)) == (4, 3, 1)
    assert {one.kind: one.message_id for one in found.unknown} == {"no id": "mine", "not in the audit": None}
    assert installation.depth(REVIEW) == 4
    told = reviewer.do(lambda context: summary(context, Filter()))
    assert (told.audit, told.queue) == (3, 4)


def test_strangers_are_adopted_and_can_then_be_sent_on(installation: Installation) -> None:
    installation.declare("orders")
    put_in_review(installation, [(Properties(message_id=b"mine"), b"1"), (Properties(headers=table(SPOOLED)), b"2")])
    reviewer = Reviewer(installation)
    found = looked(reviewer)
    assert reviewer.do(lambda context: adopt(context, found, actor="alice")) == 2
    assert not looked(reviewer).differs
    assert in_review(installation) == installation.depth(REVIEW) == 2
    assert reviewer.redrive(Filter(queue="orders")).done == 1
    assert reviewer.redrive(Filter(queue=""), to="orders").done == 1
    wait_for(lambda: installation.depth("orders") == 2, what="both to be redriven")
    wait_for(
        lambda: installation.number("select count(*) from retry where state = 'returned'") == 2, what="the tap's word"
    )


def test_what_another_consumer_took_is_reported_and_can_be_closed(installation: Installation) -> None:
    send_to_review(installation, installation.declare("orders"), ["a", "b"])
    reviewer = Reviewer(installation)
    taken = installation.get(REVIEW)
    assert taken is not None
    job = reviewer.redrive(Filter(queue="orders"))
    assert (job.state, job.done, job.gone) == ("done", 1, 1)
    assert installation.depth(REVIEW) == 0
    found = looked(reviewer)
    assert reviewer.do(lambda context: close_gone(context, found, actor="alice")) == 1
    assert not looked(reviewer).differs
    message_id = str(taken[0].message_id)
    assert row_of(installation, message_id, "state") == ("discarded",)
    assert history(installation, message_id)[-1] == "discarded"


def test_what_a_job_was_cut_off_from_removing_is_removed(installation: Installation) -> None:
    send_to_review(installation, installation.declare("orders"), ["a"])
    seen, body = installation.wait_message(REVIEW)
    again = Properties(headers=table(dict(seen.headers or {})), message_id=b"a")
    put_in_review(installation, [(again, body)])
    reviewer = Reviewer(installation)
    assert reviewer.redrive(Filter(queue="orders")).done == 1
    put_in_review(installation, [(again, body)])
    found = looked(reviewer)
    assert [one.kind for one in found.unknown] == ["left over"]
    assert reviewer.do(lambda context: remove_leftovers(context, found)) == 1
    assert installation.depth(REVIEW) == 0


def test_an_export_has_it_all_and_overwrites_nothing(installation: Installation, tmp_path: Path) -> None:
    send_to_review(
        installation,
        installation.declare("orders"),
        ["../../etc/passwd", "b"],
        body=b"\x00\x1b[2Jbody",
        note="\x1b[31m",
    )
    send_to_review(installation, installation.declare("bills"), ["c"])
    reviewer, folder = Reviewer(installation), tmp_path / "out"
    done = reviewer.do(lambda context: export(context, Filter(queue="orders"), folder))
    assert (done.count, done.not_in_queue) == (2, ())
    index = json.loads((folder / "index.json").read_text())
    assert {one["message_id"] for one in index["messages"]} == {"../../etc/passwd", "b"}
    one = index["messages"][0]
    assert (folder / one["body"]).read_bytes() == b"\x00\x1b[2Jbody"
    about = (folder / one["body"].replace(".body", ".json")).read_text()
    assert "\x1b" not in about
    assert json.loads(about)["properties"]["headers"]["note"] == "\x1b[31m"
    assert stat.S_IMODE((folder / one["body"]).stat().st_mode) == 0o600
    assert len(list(folder.iterdir())) == 5
    assert installation.depth(REVIEW) == 3
    with pytest.raises(SettingsError, match="not empty"):
        reviewer.do(lambda context: export(context, Filter(queue="orders"), folder))
