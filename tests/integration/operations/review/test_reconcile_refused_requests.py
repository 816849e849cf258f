"""Requests that no router understood, or that expired before one read them: listed by id and queue, and redriven."""

from __future__ import annotations

import json

import pika
import pytest

from tarry.operations.review.browse import Filter, page
from tarry.operations.review.reconcile import adopt, check
from tests.integration.operations.review.reviewing import REVIEW, Reviewer, in_review
from tests.support.installation import Installation
from tests.support.waiting import wait_for

EARLIER = {"tarry-id": "6f1c0a3e-0000-4000-8000-000000000001", "tarry-round": 1, "tarry-queue": "orders"}
EXPIRED = "expired in retry.scheduled before a router read it"


def envelope(installation: Installation, **fields: str | int) -> None:
    about = pika.BasicProperties(delivery_mode=2, content_type="application/vnd.tarry.retry+json")
    installation.channel.basic_publish("", "retry.scheduled", json.dumps(fields).encode(), about, mandatory=True)


def test_review_lists_and_redrives_a_refused_request(installation: Installation) -> None:
    installation.request(installation.declare("orders"), "m-1", b"one", retry_count=-1)
    envelope(installation, message_id="m-2", original_queue="orders", original_payload="dHdv", max_retries=-1)
    wait_for(lambda: in_review(installation) == 2, what="both in review")
    reviewer = Reviewer(installation)
    listed = reviewer.do(lambda context: page(context, Filter(queue="orders"))).items
    assert {(one.message_id, one.queue) for one in listed} == {("m-1", "orders"), ("m-2", "orders")}
    assert reviewer.redrive(Filter(queue="orders")).done == 2
    returned = dict(sorted((str(about.message_id), body) for about, body in _two(installation)))
    assert returned == {"m-1": b"one", "m-2": b"two"}


def _two(installation: Installation) -> list[tuple[pika.BasicProperties, bytes]]:
    return [installation.wait_message("orders"), installation.wait_message("orders")]


def test_review_does_not_send_an_envelope_that_cannot_be_read(installation: Installation) -> None:
    envelope(installation, message_id="m-1", original_queue=installation.declare("orders"), original_payload="*")
    wait_for(lambda: in_review(installation) == 1, what="it in review")
    job = Reviewer(installation).redrive(Filter(queue="orders"))
    assert (job.done, job.failed, installation.depth(REVIEW)) == (0, 1, 1)


@pytest.mark.parametrize("headers", [{}, EARLIER])
def test_adopt_says_that_a_request_expired_in_the_intake_queue(
    own_installation: Installation, headers: dict[str, str | int]
) -> None:
    """No service is running."""
    installation = own_installation
    said = {"original_queue": installation.declare("orders"), **headers}
    about = pika.BasicProperties(delivery_mode=2, message_id="m-1", expiration="100", headers=said)
    installation.channel.basic_publish("", "retry.scheduled", b"payload", about, mandatory=True)
    wait_for(lambda: installation.depth(REVIEW) == 1, what="the expired request in review")
    reviewer = Reviewer(installation)
    found = reviewer.do(check)
    assert [(one.message_id, one.queue, one.reason) for one in found.unknown] == [("m-1", "orders", EXPIRED)]
    assert reviewer.do(lambda context: adopt(context, found, actor="alice")) == 1
    (listed,) = reviewer.do(lambda context: page(context, Filter(queue="orders"))).items
    assert (listed.message_id, listed.reason) == ("m-1", EXPIRED)
    assert not reviewer.do(check).differs
    assert reviewer.redrive(Filter(queue="orders")).done == 1
    assert installation.wait_message("orders")[1] == b"payload"
