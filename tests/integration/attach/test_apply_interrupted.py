"""A management request whose client goes away is recorded by a 3.10 broker and not applied: nothing shows it."""

from __future__ import annotations

import base64
import json
import signal
import socket
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit

import pyrabbit2
import pytest

from tarry.amqp.management import Management
from tarry.attach.listing import AttachmentState
from tarry.errors import BrokerUnreachableError
from tests.integration.attach.installation import AttachInstallation, Run

PAUSES = (0.0, 0.0005, 0.001, 0.0015, 0.002)
"""Seconds between the request and the end of its connection: the broker is at another step after each."""


def put_and_hang_up(management: Management, name: str, body: dict[str, Any], pause: float) -> None:
    """Sends the request whole, and closes the connection without waiting for the answer."""
    address = management.address
    web = urlsplit(address.management)
    login = base64.b64encode(f"{address.management_user}:{address.management_password}".encode()).decode()
    text = json.dumps(body).encode()
    head = (
        f"PUT /api/policies/{quote(address.vhost, safe='')}/{quote(name, safe='')} HTTP/1.1\r\nHost: {web.hostname}\r\n"
        f"Authorization: Basic {login}\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n"
    )
    with socket.create_connection((web.hostname, web.port)) as connection:
        connection.sendall(head.encode() + text)
        time.sleep(pause)


def attach_cut_off(installation: AttachInstallation, queue: str, pause: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the command had been killed at its first write of the queue's policy."""
    whole = Management.set_policy

    def cut(self: Management, name: str, **policy: Any) -> None:
        if not name.startswith("tarry."):
            whole(self, name, **policy)
            return
        body = {key.replace("_", "-"): value for key, value in policy.items()}
        put_and_hang_up(self, name, body, pause)
        raise BrokerUnreachableError("cut off")

    with monkeypatch.context() as patched:
        patched.setattr(Management, "set_policy", cut)
        with pytest.raises(BrokerUnreachableError, match="cut off"):
            installation.attach(queue)


def assert_a_reject_arrives(installation: AttachInstallation, queue: str) -> None:
    installation.publish(queue, queue.encode())
    installation.reject(queue)
    assert installation.take("retry.scheduled", deadline=240)[1] == queue.encode()


@pytest.mark.parametrize("kind", ["quorum", "classic"])
@pytest.mark.parametrize("pause", PAUSES)
def test_attach_after_one_that_was_cut_off_is_in_effect(
    installation: AttachInstallation, kind: str, pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation.declare("orders", kind)
    attach_cut_off(installation, "orders", pause, monkeypatch)
    installation.attach("orders")
    assert installation.attachments()["orders"].state is AttachmentState.OK
    assert_a_reject_arrives(installation, "orders")


@pytest.mark.parametrize("kind", ["quorum", "classic"])
@pytest.mark.parametrize("pause", PAUSES)
def test_list_is_not_ok_after_an_attach_that_was_cut_off(
    installation: AttachInstallation, kind: str, pause: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation.declare("orders", kind)
    attach_cut_off(installation, "orders", pause, monkeypatch)
    found = installation.attachments()["orders"]
    assert found.state is not AttachmentState.OK
    assert "tarry attach orders" in found.detail


@pytest.mark.parametrize("kind", ["quorum", "classic"])
def test_attach_applies_a_policy_that_the_broker_only_recorded(installation: AttachInstallation, kind: str) -> None:
    """However it came there: a definitions import or another tool can be cut off as well."""
    installation.declare("orders", kind)
    installation.attach("orders")
    about = next(one for one in installation.management.policies() if one["name"] == "tarry.orders")
    installation.management.delete_policy("tarry.orders")
    body = {key: about[key] for key in ("pattern", "definition", "priority", "apply-to")}
    put_and_hang_up(installation.management, "tarry.orders", body, 0.0)
    installation.attach("orders")
    assert_a_reject_arrives(installation, "orders")


@pytest.mark.parametrize(("sign", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_attach_command_told_to_stop_finishes_the_write_in_progress(
    installation: AttachInstallation, tarry: Run, sign: signal.Signals, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("orders.a", "orders.b", "orders.c"):
        installation.declare(name)
    stop_at(monkeypatch, "tarry.orders.b", sign)

    stopped = tarry("attach", "orders.*")

    assert stopped.exit_code == code
    assert "queue orders.b: attached" in stopped.stdout
    assert "queue orders.c: not attached" in stopped.stdout
    assert "2 of 3 were attached" in stopped.stderr
    assert {name: found.state for name, found in installation.attachments().items()} == {
        "orders.a": "ok",
        "orders.b": "ok",
    }
    for name in ("orders.a", "orders.b"):
        assert_a_reject_arrives(installation, name)


def test_attach_command_told_to_stop_answers_in_json(
    installation: AttachInstallation, tarry: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("orders.a", "orders.b", "orders.c"):
        installation.declare(name, "classic")
    stop_at(monkeypatch, "tarry.orders.b", signal.SIGINT)
    stopped = tarry("attach", "orders.*", "--json")
    assert stopped.exit_code == 130
    assert {one["name"]: one["status"] for one in json.loads(stopped.stdout)} == {
        "orders.a": "attached",
        "orders.b": "attached",
        "orders.c": "not attached",
    }


def test_attach_command_told_to_stop_at_the_probe_changes_nothing(
    installation: AttachInstallation, tarry: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation.declare("orders")
    before = installation.everything()
    stop_at(monkeypatch, "tarry-probe.", signal.SIGINT)
    stopped = tarry("attach", "orders")
    assert stopped.exit_code == 130, stopped.output
    assert "0 of 1 were attached" in stopped.stderr
    assert installation.everything() == before


def test_detach_command_told_to_stop_finishes_the_write_in_progress(
    installation: AttachInstallation, tarry: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation.declare("orders")
    installation.attach("orders")
    stop_at(monkeypatch, "tarry.orders", signal.SIGTERM, "delete_policy")
    stopped = tarry("detach", "orders")
    assert stopped.exit_code == 143
    assert "policy is deleted: orders" in stopped.stderr
    assert installation.applied_policy("orders") is None
    assert installation.attachments()["orders"].state is AttachmentState.POLICY_GONE


def stop_at(monkeypatch: pytest.MonkeyPatch, policy: str, sign: signal.Signals, method: str = "create_policy") -> None:
    """The signal arrives when that policy is about to be written."""
    whole: Callable[..., Any] = getattr(pyrabbit2.Client, method)

    def stopped(self: pyrabbit2.Client, vhost: str, name: str, **body: Any) -> Any:
        if name.startswith(policy):
            signal.raise_signal(sign)
        return whole(self, vhost, name, **body)

    monkeypatch.setattr(pyrabbit2.Client, method, stopped)
