"""The receivers under examples/webhooks, as their readers would run them: what they accept, and what they refuse."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tarry.core.signature import SIGNATURE, Secret
from tarry.events.webhooks import signed
from tests.support.receiver import OTHER_SECRET, SECRET, exhausted_event
from tests.support.waiting import wait_for

EXAMPLES = Path(__file__).parents[2] / "examples" / "webhooks"
COMMANDS = {"python": [sys.executable, "-u", "receiver.py"], "node": ["node", "receiver.js"]}
EVENT = exhausted_event("orders.größe")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(params=COMMANDS)
def receiver(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[httpx.Client, Path]]:
    """A client of a running receiver, and its output."""
    if request.param == "node" and not shutil.which("node"):
        pytest.skip("node is not on PATH")
    port, output = free_port(), tmp_path / "output"
    command = [*COMMANDS[request.param], str(port)]
    with (
        output.open("wb") as file,
        subprocess.Popen(command, cwd=EXAMPLES, env=os.environ | {"WEBHOOK_SECRET": SECRET}, stdout=file) as process,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
    ):
        try:
            wait_for(lambda: answers(client), deadline=60, what="the receiver to listen")
            yield client, output
        finally:
            process.kill()


def answers(client: httpx.Client) -> bool:
    try:
        return client.post("/", content=b"{}").status_code == 401
    except httpx.TransportError:
        return False


def test_a_receiver_handles_each_signed_event_once(receiver: tuple[httpx.Client, Path]) -> None:
    client, output = receiver
    body, headers = signed(Secret.parse(SECRET), EVENT)
    _, forged = signed(Secret.parse(OTHER_SECRET), EVENT)
    _, of_both = signed(Secret.parse(f"{OTHER_SECRET} {SECRET}"), EVENT)
    old = Secret.parse(SECRET).sign(EVENT.id, int(time.time()) - 600, body)

    given = [forged, old, {**headers, SIGNATURE: "v1,AAAA"}, headers, of_both]
    statuses = [client.post("/", content=body, headers=one).status_code for one in given]
    changed = client.post("/", content=body + b" ", headers=headers).status_code

    assert (statuses, changed) == ([401, 401, 401, 204, 204], 401)
    lines = wait_for(
        lambda: output.read_text(encoding="utf-8").splitlines(), deadline=120, what="a line about the event"
    )
    expected = {"event": "tarry.retry.exhausted", "about": "5f0c8a9e", "data": {"queue": "orders.größe"}}
    assert [json.loads(line) for line in lines] == [expected]
