"""A record on its way through the broker comes out as it went in, also between routers of two versions."""

from __future__ import annotations

import json
from dataclasses import replace

from tarry.amqp.delivery import Delivery
from tarry.core.names import Names
from tarry.core.states import State
from tarry.router.ledger import spool_message, spooled_record
from tarry.store.rows import Record

RECORD = Record(
    "0a0a0a0a-0b0b-5c0c-8d0d-0e0e0e0e0e0e",
    2,
    State.SCHEDULED,
    "orders",
    message_id="m",
    due_ms=5,
    body=b"\x00body",
    properties=b"\x80",
    identity="0" * 31 + "1",
    death="orders:1:5",
    guessed_round=2,
    owner="acme",
    job_type="pdf",
    priority="high",
    hint_ms=30_000,
    deferred_from_ms=4,
    budget="2 retries per owner and day (UTC)",
)
SINCE_THE_FIRST_VERSION = {"identity", "death", "guessed_round", "owner", "job_type", "priority", "hint_ms"} | {
    "deferred_from_ms",
    "budget",
}


def sent(record: Record) -> Delivery:
    message = spool_message(record, Names())
    return Delivery(message.body, message.properties, "retry.spool")


def test_a_spooled_record_comes_out_as_it_went_in() -> None:
    assert spooled_record(sent(RECORD)) == RECORD


def test_a_spooled_record_has_a_body_that_the_first_version_reads() -> None:
    assert set(json.loads(sent(RECORD).body)) == set(Record._fields) - SINCE_THE_FIRST_VERSION


def test_a_spooled_record_of_the_first_version_is_read() -> None:
    delivery = sent(RECORD)
    old = delivery._replace(properties=replace(delivery.properties, headers=None))
    known = RECORD._replace(identity=None, death=None, guessed_round=0)
    assert spooled_record(old) == known._replace(
        owner=None, job_type=None, priority=None, hint_ms=None, deferred_from_ms=None, budget=None
    )


def test_a_spooled_record_of_a_later_version_is_read() -> None:
    delivery = sent(RECORD)
    later = json.dumps(json.loads(delivery.body) | {"something new": 1}).encode()
    assert spooled_record(delivery._replace(body=later)) == RECORD
