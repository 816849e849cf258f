"""Redriving what is in review: to its origin or elsewhere, fresh or once more, as it was or edited."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tarry.control.desk import Desk
from tarry.control.review.edits import Edits
from tarry.control.review.filters import Filter
from tarry.control.review.job import Order
from tarry.control.review.jobs import create, problems
from tarry.control.review.listing import resolve, show
from tarry.control.review.resend import Manner
from tarry.errors import ConflictError, NotFoundError, SettingsError
from tests.harness.waiting import wait_for
from tests.integration.review.reviewing import (
    REVIEW,
    Person,
    history,
    in_review,
    number,
    row_of,
    send_to_review,
)
from tests.integration.router.serving import Place


def test_a_group_is_sent_on_and_the_rest_stays(place: Place) -> None:
    orders, bills = place.origin("orders"), place.origin("bills")
    send_to_review(place, orders, [f"o{n}" for n in range(30)], body=b"an order", error_reason="no stock for 4711")
    send_to_review(place, bills, [f"b{n}" for n in range(20)])

    job = Person(place).redrive(Filter(queue="orders"))

    assert (job.state, job.total, job.done, job.gone, job.failed) == ("done", 30, 30, 0, 0)
    assert sorted(place.take(orders, 30)) == sorted(f"o{n}" for n in range(30))
    assert place.depth(REVIEW) == in_review(place) == 20
    wait_for(lambda: row_of(place, "o7", "state") == ("returned",), what="the tap to see them")
    assert history(place, "o7") == ["claimed", "in_review", "scheduled", "returned"]


def test_it_comes_back_as_it_was_and_counts_anew_or_once_more(place: Place) -> None:
    place.origin("quick.orders")
    send_to_review(place, "quick.orders", ["fresh", "once"], body=b"{}", color="blue", retry_count=3, max_retries=3)
    person = Person(place)

    person.redrive(Filter(ids=person.do(lambda desk: resolve(desk, ["fresh"]))))
    about, body = place.wait_message("quick.orders")
    assert body == b"{}"
    headers = about.headers or {}
    assert headers["color"] == "blue"
    assert (headers["tarry-count"], headers["retry_count"]) == (0, 0)
    assert "review_reason" not in headers
    assert "error_class" not in headers

    person.redrive(Filter(ids=person.do(lambda desk: resolve(desk, ["once"]))), fresh=False)
    about, _ = place.wait_message("quick.orders")
    assert (about.headers or {})["tarry-count"] == 3
    kept = {name: value for name, value in (about.headers or {}).items() if name.startswith("tarry-")}
    place.request("quick.orders", "once", **kept)  # type: ignore[arg-type] # as a consumer that fails again does
    wait_for(lambda: in_review(place) == 1, what="it to be in review again, for good")
    assert row_of(place, "once", "state", "round") == ("in_review", 2)


def test_a_delay_is_kept(place: Place) -> None:
    send_to_review(place, place.origin("orders"), ["late"])
    Person(place).redrive(Filter(queue="*"), delay_ms=1_500)
    assert row_of(place, "late", "state", "delay_ms") == ("scheduled", 1_500)
    assert place.get("orders") is None
    place.wait_message("orders")
    wait_for(lambda: row_of(place, "late", "state") == ("returned",), what="the tap to see it")
    assert row_of(place, "late", "drift_ms")[0] >= 0


def test_it_is_redirected_and_goes_on_counting_there(place: Place) -> None:
    send_to_review(place, place.origin("orders"), ["moved"])
    place.origin("quick.other")
    Person(place).redrive(Filter(queue="orders"), to="quick.other")
    about, _ = place.wait_message("quick.other")
    headers = about.headers or {}
    assert headers["tarry-queue"] == "quick.other"
    wait_for(lambda: row_of(place, "moved", "state", "queue") == ("returned", "quick.other"), what="the books to know")
    kept = {name: value for name, value in headers.items() if name.startswith("tarry-")}
    place.request("quick.other", "moved", **kept)  # type: ignore[arg-type] # as a consumer that fails again does
    place.wait_message("quick.other")
    assert number(place, "select count(*) from retry") == 1


def test_a_redirect_to_a_queue_that_is_not_there_leaves_all_in_review(place: Place) -> None:
    send_to_review(place, place.origin("orders"), ["a", "b"])
    person = Person(place)
    job = person.redrive(Filter(queue="*"), to="nowhere")
    assert (job.state, job.failed, job.done) == ("done", 2, 0)
    said = person.do(lambda desk: problems(desk, job.id))
    assert {one.problem for one in said} == {"the queue 'nowhere' does not exist"}
    assert place.depth(REVIEW) == in_review(place) == 2


def test_an_edit_keeps_the_original(place: Place) -> None:
    send_to_review(place, place.origin("orders"), ["typo"], body=b'{"sku": "4l"}', color="blue", shape="round")
    person = Person(place)
    edits = Edits({"color": "red", "tries": 2}, ("shape",), b'{"sku": "41"}')
    person.redrive(Filter(queue="*"), edits=edits)
    about, body = place.wait_message("orders")
    headers = about.headers or {}
    assert (body, headers["color"], headers["tries"]) == (b'{"sku": "41"}', "red", 2)
    assert "shape" not in headers
    kept = {name: value for name, value in headers.items() if name.startswith("tarry-")}
    place.request("orders", "typo", b'{"sku": "41"}', error_class="final", **kept)  # type: ignore[arg-type] # fails again
    wait_for(lambda: in_review(place) == 1, what="it to be in review again")
    found = person.do(lambda desk: show(desk, "typo", payload=True))
    assert found.body == b'{"sku": "41"}'
    assert [one.body for one in found.edits] == [b'{"sku": "4l"}']
    assert found.edits[0].changes["dropped"] == ["shape"]
    assert (found.steps[2].detail or {})["edited"]["body_size"] == len(b'{"sku": "41"}')


def test_what_could_not_be_understood_needs_a_queue(place: Place) -> None:
    place.origin("orders")
    place.channel.basic_publish("", "retry.scheduled", b"no headers at all", mandatory=True)
    wait_for(lambda: in_review(place) == 1, what="it to be in review")
    person = Person(place)
    assert person.redrive(Filter(queue="")).failed == 1
    assert in_review(place) == 1
    assert person.redrive(Filter(queue=""), to="orders").done == 1
    about, body = place.wait_message("orders")
    assert body == b"no headers at all"
    wait_for(lambda: number(place, "select count(*) from retry where state = 'returned'") == 1, what="the tap's word")
    kept = {name: value for name, value in (about.headers or {}).items() if name.startswith("tarry-")}
    place.request("orders", "", **kept)  # type: ignore[arg-type] # as a consumer that fails again does
    place.wait_message("orders")


def test_an_envelope_is_unwrapped(place: Place) -> None:
    import base64  # noqa: PLC0415 - only here
    import json  # noqa: PLC0415 - only here

    import pika  # noqa: PLC0415 - only here

    place.origin("orders")
    inside = {
        "message_id": "m1",
        "original_queue": "orders",
        "original_payload": base64.b64encode(b"inside").decode(),
        "retry_count": 9,
        "max_retries": 3,
    }
    about = pika.BasicProperties(delivery_mode=2, content_type="application/vnd.tarry.retry+json")
    place.channel.basic_publish("", "retry.scheduled", json.dumps(inside).encode(), about, mandatory=True)
    wait_for(lambda: in_review(place) == 1, what="it to be in review, exhausted")
    Person(place).redrive(Filter(queue="orders"))
    seen, body = place.wait_message("orders")
    assert (body, seen.message_id, seen.content_type) == (b"inside", "m1", None)


def test_a_discard_is_in_the_history_with_its_reason(place: Place) -> None:
    send_to_review(place, place.origin("orders"), ["a", "b"])
    job = Person(place).discard(Filter(queue="orders"), "an old campaign")
    assert (job.done, place.depth(REVIEW), in_review(place)) == (2, 0, 0)
    assert history(place, "a") == ["claimed", "in_review", "discarded"]


def test_nothing_is_done_without_knowing_what(place: Place) -> None:
    send_to_review(place, place.origin("orders"), ["a"])
    person = Person(place)

    def attempt(order: Order) -> Callable[[Desk], object]:
        return lambda desk: create(desk, order, actor="alice")

    for order in (
        Order("redrive", Filter()),
        Order("discard", Filter(queue="*"), reason=" "),
        Order("redrive", Filter(queue="*"), rate=0),
        Order("redrive", Filter(queue="*"), Manner(to="retry.audit")),
        Order("redrive", Filter(queue="*"), Manner(edits=Edits({"tarry-id": "x"}))),
    ):
        with pytest.raises(SettingsError):
            person.do(attempt(order))  # type: ignore[arg-type] # a coroutine
    with pytest.raises(NotFoundError):
        person.do(attempt(Order("redrive", Filter(queue="bills"))))  # type: ignore[arg-type] # a coroutine
    person.do(attempt(Order("redrive", Filter(queue="orders"))))  # type: ignore[arg-type] # a coroutine
    with pytest.raises(ConflictError, match="another job"):
        person.do(attempt(Order("discard", Filter(queue="orders"), reason="x")))  # type: ignore[arg-type] # a coroutine
    assert in_review(place) == 1
