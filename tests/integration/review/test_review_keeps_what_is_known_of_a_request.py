"""Requests that no router understood, or that expired before one read them: listed by id and queue, and sent on."""

from __future__ import annotations

import json
from collections.abc import Callable

import pika
import pytest

from tarry.control.review.adopt import adopt
from tarry.control.review.check import check
from tarry.control.review.filters import Filter
from tarry.control.review.listing import page
from tests.harness.waiting import wait_for
from tests.integration.review.reviewing import REVIEW, Person, in_review
from tests.integration.router.serving import Place, Router

EARLIER = {"tarry-id": "6f1c0a3e-0000-4000-8000-000000000001", "tarry-round": 1, "tarry-queue": "orders"}
EXPIRED = "expired in retry.scheduled before a router read it"


def envelope(place: Place, **fields: str | int) -> None:
    about = pika.BasicProperties(delivery_mode=2, content_type="application/vnd.tarry.retry+json")
    place.channel.basic_publish("", "retry.scheduled", json.dumps(fields).encode(), about, mandatory=True)


def test_review_lists_and_redrives_a_refused_request(place: Place) -> None:
    place.request(place.origin("orders"), "m-1", b"one", retry_count=-1)
    envelope(place, message_id="m-2", original_queue="orders", original_payload="dHdv", max_retries=-1)
    wait_for(lambda: in_review(place) == 2, what="both in review")
    person = Person(place)
    listed = person.do(lambda desk: page(desk, Filter(queue="orders"))).items
    assert {(one.message_id, one.queue) for one in listed} == {("m-1", "orders"), ("m-2", "orders")}
    assert person.redrive(Filter(queue="orders")).done == 2
    returned = dict(sorted((str(about.message_id), body) for about, body in _two(place)))
    assert returned == {"m-1": b"one", "m-2": b"two"}


def _two(place: Place) -> list[tuple[pika.BasicProperties, bytes]]:
    return [place.wait_message("orders"), place.wait_message("orders")]


def test_review_does_not_send_an_envelope_that_cannot_be_read(place: Place) -> None:
    envelope(place, message_id="m-1", original_queue=place.origin("orders"), original_payload="*")
    wait_for(lambda: in_review(place) == 1, what="it in review")
    job = Person(place).redrive(Filter(queue="orders"))
    assert (job.done, job.failed, place.depth(REVIEW)) == (0, 1, 1)


@pytest.mark.parametrize("headers", [{}, EARLIER])
def test_adopt_says_that_a_request_expired_in_the_intake_queue(
    own_place: Place, start: Callable[..., Router], headers: dict[str, str | int]
) -> None:
    place = own_place
    start().wait_ready().stop()
    said = {"original_queue": place.origin("orders"), **headers}
    about = pika.BasicProperties(delivery_mode=2, message_id="m-1", expiration="100", headers=said)
    place.channel.basic_publish("", "retry.scheduled", b"payload", about, mandatory=True)
    wait_for(lambda: place.depth(REVIEW) == 1, what="the expired request in review")
    person = Person(place)
    found = person.do(check)
    assert [(one.message_id, one.queue, one.reason) for one in found.strangers] == [("m-1", "orders", EXPIRED)]
    assert person.do(lambda desk: adopt(desk, found, actor="alice")) == 1
    (listed,) = person.do(lambda desk: page(desk, Filter(queue="orders"))).items
    assert (listed.message_id, listed.reason) == ("m-1", EXPIRED)
    assert not person.do(check).differs
    assert person.redrive(Filter(queue="orders")).done == 1
    assert place.wait_message("orders")[1] == b"payload"
