"""The service's own audit pass: what it presumes, what it finds missing, and what was cancelled."""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from tarry.amqp.management import Management
from tarry.attach.apply import AttachRequest, attach
from tarry.core.names import id_key
from tarry.topology.load import load
from tests.support.installation import Installation
from tests.support.proxy import Proxy
from tests.support.router import Router
from tests.support.spaces import with_port
from tests.support.waiting import wait_for

Start = Callable[..., Router]
Through = Callable[[str], Proxy]
OFTEN = {"TARRY_LOOK_EVERY": "500ms", "TARRY_PRESUME_AFTER": "1s"}


def state(installation: Installation, message_id: str) -> tuple[str, str] | None:
    """Where a retry stands, and its id."""
    with psycopg.connect(installation.dsn) as connection:
        row = connection.execute("select state, id::text from retry where message_id = %s", [message_id]).fetchone()
    return None if row is None else (row[0], row[1])


def test_success_is_presumed_after_the_quiet_time(installation: Installation, start: Start) -> None:
    router = start(**OFTEN).wait_ready()
    installation.request(installation.declare("quick.orders"), "m1")
    wait_for(lambda: (state(installation, "m1") or ("",))[0] == "succeeded", what="a presumed success")
    wait_for(lambda: router.metric("tarry_presumed_total") == 1, what="its count")


def test_a_message_taken_from_a_tier_by_hand_is_missed(installation: Installation, start: Start) -> None:
    router = start(**OFTEN).wait_ready()
    installation.request(installation.declare("quick.orders"), "gone")
    installation.request(installation.declare("slow.orders"), "stays")
    wait_for(lambda: router.metric("tarry_open", state="scheduled") == 1, what="one waiting")
    assert router.metric("tarry_missing") == 0
    wait_for(lambda: installation.depth("retry.delay.5m") == 1)
    installation.get("retry.delay.5m")
    wait_for(lambda: router.metric("tarry_missing") == 1, what="one missing")
    assert router.wait_logged("retries missing")["number"] == 1


def test_service_tells_an_attachment_that_is_not_in_effect(installation: Installation, start: Start) -> None:
    queue = installation.declare("quick.orders")
    attach(load(installation.folder), installation.address, AttachRequest([queue]))
    router = start(**OFTEN).wait_ready()
    wait_for(lambda: router.metric("tarry_attachments", state="ok") == 1, what="the attachment to be seen")
    Management(installation.address).delete_policy(f"tarry.{queue}")
    wait_for(lambda: router.metric("tarry_attachments", state="policy gone") == 1, what="the change to be seen")
    assert router.metric("tarry_attachments", state="ok") == 0
    told = router.wait_logged("attachment is not in effect")
    assert (told["queue"], told["state"]) == (queue, "policy gone")


def test_what_was_diverted_at_the_cancelled_gate_is_cancelled_in_the_store(
    installation: Installation, start: Start
) -> None:
    router = start().wait_ready()
    queue = installation.declare("quick.orders")
    installation.request(queue, "m1")
    found = wait_for(lambda: state(installation, "m1"), what="the retry in the store")
    assert found is not None
    installation.channel.queue_bind("retry.cancelled", "retry.gate.cancelled", id_key(found[1], 1))
    wait_for(lambda: (state(installation, "m1") or ("",))[0] == "cancelled", what="it to be cancelled")
    assert router.metric("tarry_cancelled_total", queue=queue) == 1
    assert installation.depth(queue) == 0


def test_the_kind_of_trouble_is_told_in_health_and_metrics(
    installation: Installation, start: Start, proxy: Through
) -> None:
    wire = proxy(installation.dsn)
    router = start(DATABASE_URL=with_port(installation.dsn, wire.port), **OFTEN).wait_ready()
    assert '"postgres":"ok"' in router.get("/readyz")[1]
    wire.refuse()
    wire.cut()
    installation.request(installation.declare("quick.orders"), "m1")
    wait_for(lambda: router.metric("tarry_postgres_trouble", kind="unreachable") == 1, what="the kind of trouble")
    assert router.metric("tarry_postgres_trouble", kind="full") == 0
    assert '"postgres":"unreachable"' in router.get("/readyz")[1]
    wait_for(lambda: "\ntarry_missing " not in router.get("/metrics")[1], what="unknown numbers to go")
    wire.heal()
    router.wait_ready()
    wait_for(lambda: "\ntarry_missing 0" in router.get("/metrics")[1], what="the numbers to be back")
