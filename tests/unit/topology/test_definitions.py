from __future__ import annotations

import base64
import hashlib
import json
import re
from xml.etree import ElementTree as ET

from tarry.topology.blueprint import blueprint
from tarry.topology.definitions import definitions, definitions_text, deploy_user, hashed, router_user
from tarry.topology.rights import deploy_rights, router_rights
from tarry.topology.show import mermaid, steps, svg
from tests.unit.topology.examples import topology

NARROW = topology(destinations=["orders.*", "mail"])


def test_a_definitions_file_has_the_whole_blueprint_and_no_user() -> None:
    found = definitions(topology(), "a/b")
    wanted = blueprint(topology())

    assert (len(found["exchanges"]), len(found["queues"]), len(found["bindings"])) == (
        len(wanted.exchanges),
        len(wanted.queues),
        len(wanted.bindings),
    )
    assert {part["vhost"] for kind in ("exchanges", "queues", "bindings") for part in found[kind]} == {"a/b"}
    assert "users" not in found


def test_the_file_has_one_thing_a_line_and_is_json() -> None:
    text = definitions_text(topology())

    assert json.loads(text) == definitions(topology())
    assert '  {"name": "retry.unroutable", "vhost": "/", "type": "fanout"' in text


def test_users_come_with_a_hash_and_never_with_a_password() -> None:
    text = definitions_text(topology(), users=(deploy_user(topology(), "s3cret"), router_user(topology(), "t0psecret")))
    users = json.loads(text)["users"]

    assert [user["name"] for user in users] == ["tarry-deploy", "tarry-router"]
    assert "cret" not in text


def test_a_password_is_hashed_as_the_broker_does_it() -> None:
    salt = bytes.fromhex("908dc60a")

    assert base64.b64decode(hashed("test12", salt)) == salt + hashlib.sha256(salt + b"test12").digest()
    assert hashed("test12", salt) == "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"


def test_the_router_may_configure_nothing_and_read_only_its_own() -> None:
    rights = router_rights(NARROW)

    assert rights.configure == "^$"
    assert re.search(rights.read, "retry.scheduled")
    assert not re.search(rights.read, "orders.new")
    assert not re.search(rights.read, "retry.delay.2s")


def test_both_may_write_where_messages_return_and_nowhere_else() -> None:
    for rights in (router_rights(NARROW), deploy_rights(NARROW)):
        assert re.search(rights.write, "orders.new")
        assert re.search(rights.write, "mail")
        assert not re.search(rights.write, "mails")
        assert not re.search(rights.write, "payments")


def test_the_deploy_user_may_configure_tarrys_own_and_no_other() -> None:
    configure = deploy_rights(NARROW).configure

    assert all(re.search(configure, name) for name in ("retry.delay.2s", "manual-review.pending", "retry.relay.x"))
    assert not any(re.search(configure, name) for name in ("orders.new", "xretry.delay.2s", "manual-review.pending2"))


def test_the_way_starts_at_the_intake_and_ends_in_unroutable() -> None:
    way = steps(topology())

    assert [way[0].exchange, way[1].exchange, way[-1].exchange] == ["retry.intake", "retry.delay", "retry.unroutable"]
    assert way[1].queues == ("retry.delay.2s", "retry.delay.8s")


def test_every_exchange_on_the_way_is_in_both_pictures() -> None:
    flowchart, picture = mermaid(topology()), svg(topology())

    assert all(step.exchange in flowchart and step.exchange in picture for step in steps(topology()))
    assert flowchart.startswith("flowchart TD\n")


def test_the_svg_is_well_formed() -> None:
    assert ET.fromstring(svg(topology())).tag.endswith("svg")  # noqa: S314 - our own file


def test_a_lane_is_in_the_definitions_and_in_the_rights_and_not_on_the_picture() -> None:
    policy = {"name": "p", "schedule": ["2s"], "max_retries": 2}
    plain, laned = topology(policy=[policy]), topology(policy=[policy | {"lane": "critical"}])
    found = {queue["name"] for queue in definitions(laned)["queues"]}
    assert {"retry.delay~critical.2s", "retry.relay~critical"} <= found
    gate = "retry.lanes.cancelled"
    assert re.search(router_rights(laned).read, gate)
    assert not re.search(router_rights(plain).read, gate)
    assert [step.exchange for step in steps(laned)] == [step.exchange for step in steps(plain)]
    assert "retry.delay~critical.2s" in {queue for step in steps(laned) for queue in step.queues}
