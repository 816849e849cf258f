"""Each consumer under examples/, as its reader would run it, against `tarry serve`.

EXAMPLES_PYTHON is an interpreter with Celery, Dramatiq and FastStream; AMQP_CLIENT_JARS a folder with the jars of
amqp-client and slf4j-api (Debian's packages put them into /usr/share/java).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest

from tests.acceptance.serving import Stage, serving
from tests.acceptance.up_command import running
from tests.harness.spaces import Database, Vhost
from tests.harness.waiting import wait_for

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
TARRY = [sys.executable, "-m", "tarry"]
PYTHON = os.environ.get("EXAMPLES_PYTHON", sys.executable)
JARS = Path(os.environ.get("AMQP_CLIENT_JARS", "/usr/share/java"))
ORDER = {"id": 1, "succeeds_at": 3}


class Example(NamedTuple):
    """How it is run, how it is sent an order, and what it promises."""

    command: list[str]
    send: list[str] | None = None
    attached: bool = False
    reports: bool = True


def python(folder: str, module: str, *command: str, **how: object) -> Example:
    asked = subprocess.run([PYTHON, "-c", f"import {module}"], capture_output=True, check=False)
    if asked.returncode:
        pytest.skip(f"{PYTHON} has no {module}: set EXAMPLES_PYTHON to an interpreter that has")
    return Example([PYTHON, "-u", *(command or ["worker.py"])], **how)  # type: ignore[arg-type]


def node(folder: Path) -> Example:
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node and npm are not on PATH")
    install = ["npm", "ci", "--no-audit", "--no-fund"]
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"npm ci did not work here: {done.stderr[-300:]}")
    return Example(["node", "worker.js"])


def java() -> Example:
    jars = [JARS / "amqp-client.jar", JARS / "slf4j-api.jar"]
    if not shutil.which("java") or not all(jar.exists() for jar in jars):
        pytest.skip(f"no java on PATH, or no amqp-client.jar and slf4j-api.jar in {JARS}: set AMQP_CLIENT_JARS")
    return Example(["java", "-cp", ":".join(map(str, jars)), "Worker.java"])


def example(name: str, folder: Path) -> Example:
    send = [PYTHON, "worker.py", json.dumps(ORDER)]
    match name:
        case "thread-pool":
            return python(name, "pika")
        case "faststream":
            return python(name, "faststream.rabbit")
        case "dramatiq":
            command = ("-m", "dramatiq", "worker", "--processes", "1", "--threads", "2")
            return python(name, "dramatiq", *command, send=send, reports=False)
        case "celery":
            quiet = ("--concurrency=1", "--without-gossip", "--without-mingle")
            task = ("-m", "celery", "-A", "worker", "worker", *quiet)
            return python(name, "celery", *task, send=send, attached=True, reports=False)
        case "node-client":
            return node(folder)
        case _:
            return java()


@pytest.mark.parametrize("name", ["thread-pool", "faststream", "dramatiq", "celery", "node-client", "java-client"])
def test_an_order_is_tried_until_it_succeeds(name: str, vhost: Vhost, database: Database, tmp_path: Path) -> None:
    folder = tmp_path / name
    shutil.copytree(EXAMPLES / name, folder, ignore=shutil.ignore_patterns("node_modules", "__pycache__"))
    one = example(name, folder)
    settings = os.environ | {
        "RABBITMQ_URL": vhost.amqp_url,
        "RABBITMQ_MANAGEMENT_URL": vhost.management_url,
        "DATABASE_URL": database.dsn,
        "TARRY_TOPOLOGY": str(tmp_path / "topology"),
        "PYTHONPATH": str(ROOT / "src"),
    }
    with serving(vhost, database, tmp_path, scale=0.05) as stage, running(one.command, settings, folder) as worker:
        wait_for(lambda: worker.process.poll() is not None or consumers(vhost), deadline=60, what=f"{name} to consume")
        assert worker.process.poll() is None, worker.text
        if one.attached:
            subprocess.run([*TARRY, "attach", "orders"], env=settings, check=True, capture_output=True)
        if one.send is None:
            stage.work("orders", "order-1", json.dumps(ORDER).encode(), tenant="acme")
        else:
            subprocess.run(one.send, env=settings, cwd=folder, check=True, capture_output=True)
        expected = [{"order": 1, "attempt": number} for number in (1, 2, 3)]
        wait_for(lambda: attempts(worker.text) == expected, deadline=60, what=f"three attempts by {name}")
        wait_for(lambda: stage.depth("orders") == 0, what="the last to be acknowledged")
        wait_for(lambda: state(stage) == ("succeeded" if one.reports else "returned"), what="its state in the books")


def attempts(text: str) -> list[dict[str, int]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"order"')]


def consumers(vhost: Vhost) -> int:
    return sum(one["queue"]["name"] == "orders" for one in vhost.api("consumers/{vhost}"))


def state(stage: Stage) -> str:
    with psycopg.connect(stage.dsn) as books:
        row = books.execute("select state from retry").fetchone()
    return str(row[0]) if row else "unknown"
