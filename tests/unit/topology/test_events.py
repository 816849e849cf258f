"""The exchange and the stream of events in a topology."""

from __future__ import annotations

import re

from tarry.topology.blueprint import blueprint, events_blueprint
from tarry.topology.objects import Binding, Exchange
from tarry.topology.plan import explain_difference, make_plan
from tarry.topology.rights import deploy_rights, router_rights
from tarry.topology.verify import findings
from tests.unit.topology import examples

ON = {"enabled": True, "max_age": "2d", "max_bytes": 40_000_000}
EXPECTED = examples.expected(events=ON)
STANDING = examples.live(EXPECTED.blueprint)


def test_a_topology_without_events_declares_nothing_for_them() -> None:
    made = examples.topology()

    assert not [part.name for part in blueprint(made).parts if "events" in part.name]
    assert not len(events_blueprint(made.broker_names, made.events))
    assert "events" not in router_rights(made).write + router_rights(made).read


def test_events_have_a_topic_exchange_and_a_stream_that_takes_them_all() -> None:
    assert Exchange("retry.events", "topic") in EXPECTED.blueprint.exchanges
    assert Binding("retry.events", "#", "retry.events.stream") in EXPECTED.blueprint.bindings
    stream = next(queue for queue in EXPECTED.blueprint.queues if queue.name == "retry.events.stream")
    assert stream.arguments.as_dict() == {
        "x-queue-type": "stream",
        "x-max-age": "172800s",
        "x-max-length-bytes": 40_000_000,
        "x-stream-max-segment-size-bytes": 2_000_000,
    }


def test_the_router_may_publish_events_and_read_the_stream() -> None:
    rights = router_rights(examples.topology(events=ON, destinations=["orders"]))

    assert re.search(rights.write, "retry.events")
    assert re.search(rights.read, "retry.events.stream")
    assert not re.search(rights.write, "retry.events.stream")
    assert re.search(deploy_rights(examples.topology(events=ON)).configure, "retry.events.stream")


def test_anybody_may_bind_a_queue_to_the_exchange_of_events() -> None:
    assert findings(EXPECTED, examples.with_binding(STANDING, Binding("retry.events", "exhausted.#", "alerts"))) == []


def test_a_changed_retention_is_shown_with_the_remedy() -> None:
    live = examples.with_argument(STANDING, "retry.events.stream", "x-max-age", "60s")
    (difference,) = make_plan(EXPECTED.names, EXPECTED.blueprint, live).different

    text = explain_difference(EXPECTED.names, difference)
    assert "x-max-age is 60s, should be 172800s" in text
    assert "delete the stream" in text


def test_the_queue_of_requests_cannot_have_the_name_of_the_stream() -> None:
    assert EXPECTED.names.is_taken("retry.events.stream")
    assert EXPECTED.names.parse("retry.events.stream") is not None
