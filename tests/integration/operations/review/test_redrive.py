"""Redriving what is in review: to its origin or elsewhere, fresh or once more, as it was or edited."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tarry.errors import ConflictError, NotFoundError, SettingsError
from tarry.operations.context import OperatorContext
from tarry.operations.review.browse import Filter, detail, resolve
from tarry.operations.review.export import payload
from tarry.operations.review.jobs import JobSpec, create, problems
from tarry.operations.review.redrive import Edits, RedriveOptions
from tests.integration.operations.review.reviewing import (
    REVIEW,
    Reviewer,
    history,
    in_review,
    row_of,
    send_to_review,
)
from tests.support.installation import Installation
from tests.support.waiting import wait_for


def test_a_group_is_sent_on_and_the_rest_stays(installation: Installation) -> None:
    orders, bills = installation.declare("orders"), installation.declare("bills")
    send_to_review(
        installation, orders, [f"o{n}" for n in range(30)], body=b"an order", error_reason="no stock for 4711"
    )
    send_to_review(installation, bills, [f"b{n}" for n in range(20)])

    job = Reviewer(installation).redrive(Filter(queue="orders"))

    assert (job.state, job.total, job.done, job.gone, job.failed) == ("done", 30, 30, 0, 0)
    assert sorted(installation.take_ids(orders, 30)) == sorted(f"o{n}" for n in range(30))
    assert installation.depth(REVIEW) == in_review(installation) == 20
    wait_for(lambda: row_of(installation, "o7", "state") == ("returned",), what="the tap to see them")
    assert history(installation, "o7") == ["claimed", "in_review", "scheduled", "returned"]


def test_it_comes_back_as_it_was_and_counts_anew_or_once_more(installation: Installation) -> None:
    installation.declare("quick.orders")
    send_to_review(
        installation, "quick.orders", ["fresh", "once"], body=b"{}", color="blue", retry_count=3, max_retries=3
    )
    reviewer = Reviewer(installation)

    reviewer.redrive(Filter(ids=reviewer.do(lambda context: resolve(context, ["fresh"]))))
    about, body = installation.wait_message("quick.orders")
    assert body == b"{}"
    headers = about.headers or {}
    assert headers["color"] == "blue"
    assert (headers["tarry-count"], headers["retry_count"]) == (0, 0)
    assert "review_reason" not in headers
    assert "error_class" not in headers

    reviewer.redrive(Filter(ids=reviewer.do(lambda context: resolve(context, ["once"]))), reset_attempts=False)
    about, _ = installation.wait_message("quick.orders")
    assert (about.headers or {})["tarry-count"] == 3
    kept = {name: value for name, value in (about.headers or {}).items() if name.startswith("tarry-")}
    installation.request("quick.orders", "once", **kept)  # type: ignore[arg-type] # as a consumer that fails again does
    wait_for(lambda: in_review(installation) == 1, what="it to be in review again, for good")
    assert row_of(installation, "once", "state", "round") == ("in_review", 2)


def test_a_delay_is_kept(installation: Installation) -> None:
    send_to_review(installation, installation.declare("orders"), ["late"])
    Reviewer(installation).redrive(Filter(queue="*"), delay_ms=1_500)
    assert row_of(installation, "late", "state", "delay_ms") == ("scheduled", 1_500)
    assert installation.get("orders") is None
    installation.wait_message("orders")
    wait_for(lambda: row_of(installation, "late", "state") == ("returned",), what="the tap to see it")
    assert row_of(installation, "late", "drift_ms")[0] >= 0


def test_it_is_redirected_and_goes_on_counting_there(installation: Installation) -> None:
    send_to_review(installation, installation.declare("orders"), ["moved"])
    installation.declare("quick.other")
    Reviewer(installation).redrive(Filter(queue="orders"), to="quick.other")
    about, _ = installation.wait_message("quick.other")
    headers = about.headers or {}
    assert headers["tarry-queue"] == "quick.other"
    wait_for(
        lambda: row_of(installation, "moved", "state", "queue") == ("returned", "quick.other"), what="the store to know"
    )
    kept = {name: value for name, value in headers.items() if name.startswith("tarry-")}
    installation.request("quick.other", "moved", **kept)  # type: ignore[arg-type] # as a consumer that fails again does
    installation.wait_message("quick.other")
    assert installation.number("select count(*) from retry") == 1


def test_a_redirect_to_a_queue_that_is_not_there_leaves_all_in_review(installation: Installation) -> None:
    send_to_review(installation, installation.declare("orders"), ["a", "b"])
    reviewer = Reviewer(installation)
    job = reviewer.redrive(Filter(queue="*"), to="nowhere")
    assert (job.state, job.failed, job.done) == ("done", 2, 0)
    said = reviewer.do(lambda context: problems(context, job.id))
    assert {one.problem for one in said} == {"the queue 'nowhere' does not exist"}
    assert installation.depth(REVIEW) == in_review(installation) == 2


def test_an_edit_keeps_the_original(installation: Installation) -> None:
    send_to_review(
        installation, installation.declare("orders"), ["typo"], body=b'{"sku": "4l"}', color="blue", shape="round"
    )
    reviewer = Reviewer(installation)
    edits = Edits({"color": "red", "tries": 2}, ("shape",), b'{"sku": "41"}')
    reviewer.redrive(Filter(queue="*"), edits=edits)
    about, body = installation.wait_message("orders")
    headers = about.headers or {}
    assert (body, headers["color"], headers["tries"]) == (b'{"sku": "41"}', "red", 2)
    assert "shape" not in headers
    kept = {name: value for name, value in headers.items() if name.startswith("tarry-")}
    installation.request("orders", "typo", b'{"sku": "41"}', error_class="final", **kept)  # type: ignore[arg-type] # fails again
    wait_for(lambda: in_review(installation) == 1, what="it to be in review again")
    found = reviewer.do(lambda context: detail(context, "typo"))
    content = reviewer.do(lambda context: payload(context, "typo"))
    assert content.body == b'{"sku": "41"}'
    assert [(one.edit_id, one.body) for one in content.originals] == [(found.edits[0].id, b'{"sku": "4l"}')]
    assert found.edits[0].changes["dropped"] == ["shape"]
    assert (found.steps[2].detail or {})["edited"]["body_size"] == len(b'{"sku": "41"}')


def test_what_could_not_be_understood_needs_a_queue(installation: Installation) -> None:
    installation.declare("orders")
    installation.channel.basic_publish("", "retry.scheduled", b"no headers at all", mandatory=True)
    wait_for(lambda: in_review(installation) == 1, what="it to be in review")
    reviewer = Reviewer(installation)
    assert reviewer.redrive(Filter(queue="")).failed == 1
    assert in_review(installation) == 1
    assert reviewer.redrive(Filter(queue=""), to="orders").done == 1
    about, body = installation.wait_message("orders")
    assert body == b"no headers at all"
    wait_for(
        lambda: installation.number("select count(*) from retry where state = 'returned'") == 1, what="the tap's word"
    )
    kept = {name: value for name, value in (about.headers or {}).items() if name.startswith("tarry-")}
    installation.request("orders", "", **kept)  # type: ignore[arg-type] # as a consumer that fails again does
    installation.wait_message("orders")


def test_an_envelope_is_unwrapped(installation: Installation) -> None:
    import base64  # noqa: PLC0415 - only here
    import json  # noqa: PLC0415 - only here

    import pika  # noqa: PLC0415 - only here

    installation.declare("orders")
    inside = {
        "message_id": "m1",
        "original_queue": "orders",
        "original_payload": base64.b64encode(b"inside").decode(),
        "retry_count": 9,
        "max_retries": 3,
    }
    about = pika.BasicProperties(delivery_mode=2, content_type="application/vnd.tarry.retry+json")
    installation.channel.basic_publish("", "retry.scheduled", json.dumps(inside).encode(), about, mandatory=True)
    wait_for(lambda: in_review(installation) == 1, what="it to be in review, exhausted")
    Reviewer(installation).redrive(Filter(queue="orders"))
    seen, body = installation.wait_message("orders")
    assert (body, seen.message_id, seen.content_type) == (b"inside", "m1", None)


def test_a_discard_is_in_the_history_with_its_reason(installation: Installation) -> None:
    send_to_review(installation, installation.declare("orders"), ["a", "b"])
    job = Reviewer(installation).discard(Filter(queue="orders"), "an old campaign")
    assert (job.done, installation.depth(REVIEW), in_review(installation)) == (2, 0, 0)
    assert history(installation, "a") == ["claimed", "in_review", "discarded"]


def test_nothing_is_done_without_knowing_what(installation: Installation) -> None:
    send_to_review(installation, installation.declare("orders"), ["a"])
    reviewer = Reviewer(installation)

    def attempt(order: JobSpec) -> Callable[[OperatorContext], object]:
        return lambda context: create(context, order, actor="alice", here=True)  # so that the service does not start it

    for order in (
        JobSpec("redrive", Filter()),
        JobSpec("discard", Filter(queue="*"), reason=" "),
        JobSpec("redrive", Filter(queue="*"), rate=0),
        JobSpec("redrive", Filter(queue="*"), RedriveOptions(to="retry.audit")),
        JobSpec("redrive", Filter(queue="*"), RedriveOptions(edits=Edits({"tarry-id": "x"}))),
    ):
        with pytest.raises(SettingsError):
            reviewer.do(attempt(order))  # type: ignore[arg-type] # a coroutine
    with pytest.raises(NotFoundError):
        reviewer.do(attempt(JobSpec("redrive", Filter(queue="bills"))))  # type: ignore[arg-type] # a coroutine
    reviewer.do(attempt(JobSpec("redrive", Filter(queue="orders"))))  # type: ignore[arg-type] # a coroutine
    with pytest.raises(ConflictError, match="another job"):
        reviewer.do(attempt(JobSpec("discard", Filter(queue="orders"), reason="x")))  # type: ignore[arg-type] # a coroutine
    assert in_review(installation) == 1
