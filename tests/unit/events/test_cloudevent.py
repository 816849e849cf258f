from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import jsonschema
import pytest
from cloudevents.core.bindings.amqp import AMQPMessage, from_amqp
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

from tarry.amqp.field_tables import walk
from tarry.amqp.properties import Properties
from tarry.events.cloudevent import Event, EventType, source_of
from tarry.events.schema import events_schema_text

ROOT = Path(__file__).parents[3]
EVENT = Event(
    id="5f0c8a9e-0000-4000-8000-000000000001/71",
    type=EventType.SCHEDULED,
    source="/tarry/%2F/retry",
    subject="5f0c8a9e-0000-4000-8000-000000000001",
    time=datetime(2030, 1, 31, 12, tzinfo=UTC),
    sequence="000001.1.0000000000000000071",
    state="scheduled",
    data={
        "retry_id": "5f0c8a9e-0000-4000-8000-000000000001",
        "round": 1,
        "actor": "router-1",
        "queue": "orders.eu",
        "policy": "gold",
    },
)


def test_an_event_that_was_published_is_read_as_it_was() -> None:
    message = EVENT.message("retry.events")
    wire = Properties.decode(message.encoded_properties())

    assert Event.read(wire, message.body) == EVENT
    assert (message.exchange, message.routing_key) == ("retry.events", "scheduled.gold.orders.eu")
    assert wire.content_type == b"application/json"


@pytest.mark.parametrize(
    ("headers", "body"),
    [(b"", b"{}"), (EVENT.message("x").properties.headers, b"{"), (b"\x01", b"{}")],
    ids=["no headers", "no JSON", "broken headers"],
)
def test_a_message_that_is_no_event_is_none(headers: bytes, body: bytes) -> None:
    assert Event.read(Properties(headers=headers), body) is None


def test_the_schema_accepts_the_event_and_refuses_one_without_an_id() -> None:
    schema = json.loads(events_schema_text())
    jsonschema.validate(EVENT.as_json(), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({name: of for name, of in EVENT.as_json().items() if name != "id"}, schema)


def test_the_published_schema_is_the_one_that_would_be_made() -> None:
    assert (ROOT / "docs" / "events.schema.json").read_text(encoding="utf-8") == events_schema_text()


def test_short_types_are_distinct_words() -> None:
    words = [kind.word for kind in EventType]
    assert len(set(words)) == len(words)
    assert {"failed_again", "paused", "breaker_opened"} <= set(words)


def test_an_event_of_a_later_version_has_a_short_type_too() -> None:
    assert replace(EVENT, type="tarry.retry.new_thing").word == "new_thing"


def test_the_source_is_a_uri_reference_of_vhost_and_prefix() -> None:
    assert source_of("/", "retry.") == "/tarry/%2F/retry"
    assert source_of("a/b", "shop.") == "/tarry/a%2Fb/shop"


def test_the_reference_library_reads_what_is_published() -> None:
    message = EVENT.message("retry.events")
    wire = Properties.decode(message.encoded_properties())
    headers = {name.decode(): field.text() for name, field in walk(wire.headers or b"")}
    found = from_amqp(AMQPMessage({"content-type": "application/json"}, headers, message.body), JSONFormat())

    assert isinstance(found, CloudEvent)
    assert (found.get_id(), found.get_type(), found.get_time()) == (EVENT.id, EVENT.type, EVENT.time)
    assert (found.get_extension("sequence"), found.get_data()) == (EVENT.sequence, EVENT.data)


def test_the_reference_library_reads_it_as_one_object() -> None:
    found = JSONFormat().read(None, json.dumps(EVENT.as_json()))
    assert (found.get_id(), found.get_data()) == (EVENT.id, EVENT.data)
