"""The queue and the books differ for good reasons: a check tells them apart, and can mend each."""

from __future__ import annotations

import json
import stat
from datetime import timedelta
from pathlib import Path

import pytest

from tarry.contract.encoding import table
from tarry.contract.properties import Properties
from tarry.control.review import check as checks
from tarry.control.review.adopt import adopt, remove_leftovers
from tarry.control.review.check import Checked, check, close_gone
from tarry.control.review.export import export
from tarry.control.review.filters import Filter
from tarry.control.review.listing import summary
from tarry.errors import SettingsError
from tests.harness.waiting import wait_for
from tests.integration.review.reviewing import (
    REVIEW,
    Person,
    history,
    in_review,
    number,
    put_by_hand,
    row_of,
    send_to_review,
)
from tests.integration.router.serving import Place

ELSEWHERE = "6f1c0a3e-0000-4000-8000-000000000001"
SPOOLED = {"tarry-id": ELSEWHERE, "tarry-round": 2, "tarry-queue": "orders", "review_reason": "exhausted"}


@pytest.fixture(autouse=True)
def _judges_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What went to review a moment ago is judged too."""
    monkeypatch.setattr(checks, "FRESH", timedelta(0))


def looked(person: Person) -> Checked:
    return person.do(check)


def test_each_difference_is_named_and_nothing_is_taken(place: Place) -> None:
    send_to_review(place, place.origin("orders"), ["a", "b", "c"])
    person = Person(place)
    assert not looked(person).differs
    place.get(REVIEW)  # somebody else takes one
    put_by_hand(
        place,
        [
            (Properties(message_id=b"mine", headers=table({"a": 1})), b"by hand"),
            (Properties(headers=table(SPOOLED)), b"spooled"),
        ],
    )
    found = looked(person)
    assert (found.seen, found.in_books, len(found.gone)) == (4, 3, 1)
    assert {one.kind: one.message_id for one in found.strangers} == {"no id": "mine", "not in the books": None}
    assert place.depth(REVIEW) == 4
    told = person.do(summary)
    assert (told.books, told.queue) == (3, 4)


def test_strangers_are_adopted_and_can_then_be_sent_on(place: Place) -> None:
    place.origin("orders")
    put_by_hand(place, [(Properties(message_id=b"mine"), b"1"), (Properties(headers=table(SPOOLED)), b"2")])
    person = Person(place)
    found = looked(person)
    assert person.do(lambda desk: adopt(desk, found, actor="alice")) == 2
    assert not looked(person).differs
    assert in_review(place) == place.depth(REVIEW) == 2
    assert person.redrive(Filter(queue="orders")).done == 1
    assert person.redrive(Filter(queue=""), to="orders").done == 1
    wait_for(lambda: place.depth("orders") == 2, what="both to be sent on")
    wait_for(lambda: number(place, "select count(*) from retry where state = 'returned'") == 2, what="the tap's word")


def test_what_another_consumer_took_is_reported_and_can_be_closed(place: Place) -> None:
    send_to_review(place, place.origin("orders"), ["a", "b"])
    person = Person(place)
    taken = place.get(REVIEW)
    assert taken is not None
    job = person.redrive(Filter(queue="orders"))
    assert (job.state, job.done, job.gone) == ("done", 1, 1)
    assert place.depth(REVIEW) == 0
    found = looked(person)
    assert person.do(lambda desk: close_gone(desk, found, actor="alice")) == 1
    assert not looked(person).differs
    message_id = str(taken[0].message_id)
    assert row_of(place, message_id, "state") == ("discarded",)
    assert history(place, message_id)[-1] == "discarded"


def test_what_a_job_was_cut_off_from_removing_is_removed(place: Place) -> None:
    send_to_review(place, place.origin("orders"), ["a"])
    seen, body = place.wait_message(REVIEW)
    again = Properties(headers=table(dict(seen.headers or {})), message_id=b"a")
    put_by_hand(place, [(again, body)])
    person = Person(place)
    assert person.redrive(Filter(queue="orders")).done == 1
    put_by_hand(place, [(again, body)])
    found = looked(person)
    assert [one.kind for one in found.strangers] == ["left over"]
    assert person.do(lambda desk: remove_leftovers(desk, found)) == 1
    assert place.depth(REVIEW) == 0


def test_an_export_has_it_all_and_overwrites_nothing(place: Place, tmp_path: Path) -> None:
    send_to_review(place, place.origin("orders"), ["../../etc/passwd", "b"], body=b"\x00\x1b[2Jbody", note="\x1b[31m")
    send_to_review(place, place.origin("bills"), ["c"])
    person, folder = Person(place), tmp_path / "out"
    done = person.do(lambda desk: export(desk, Filter(queue="orders"), folder))
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
    assert place.depth(REVIEW) == 3
    with pytest.raises(SettingsError, match="not empty"):
        person.do(lambda desk: export(desk, Filter(queue="orders"), folder))
