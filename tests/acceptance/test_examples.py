"""Each consumer under examples/, as its reader would run it, against `tarry serve`.

EXAMPLES_PYTHON is an interpreter with Celery, Dramatiq and FastStream (`make test` makes one in .tarry/). The programs
of docs/clients.md for Node and Java are run in the same way.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from tests.acceptance.shipped import ShippedService, serving_a_file
from tests.acceptance.up_command import running
from tests.support import runtimes
from tests.support.services import Services
from tests.support.spaces import SharedBroker
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
INSTALLED = ROOT / ".tarry" / "examples-venv" / "bin" / "python"
PYTHON = os.environ.get("EXAMPLES_PYTHON") or str(INSTALLED if INSTALLED.exists() else sys.executable)
LOOK = "import sys; from importlib.util import find_spec; sys.exit(find_spec(sys.argv[1]) is None)"
ORDER = {"id": 1, "succeeds_at": 3}
CHECKED = """
[[policy]]
name = "reminders"
match = { queue = "reminders" }
schedule = ["1s"]
max_retries = 3
eligibility = { at = "due" }
"""

NODE_SHOP = """
export async function ship(order, attempt) {
  console.log(JSON.stringify({ order: order.id, attempt: attempt.number }));
  return new Response(null, { status: attempt.number < order.succeeds_at ? 503 : 200 });
}
"""
JAVA_SHOP = """
import tarry.client.Attempt;

final class Shop {
    record Answer(int status, String retryAfter) {}

    static Answer ship(String order, Attempt attempt) {
        System.out.printf("{\\"order\\": 1, \\"attempt\\": %d}%n", attempt.number());
        return new Answer(attempt.number() < 3 ? 503 : 200, null);
    }
}
"""


class Example(NamedTuple):
    """How it is run, how it is sent an order, and what it promises."""

    command: list[str]
    send: list[str] | None = None
    attached: bool = False
    reports: bool = True


def python(package: str, *command: str, **how: Any) -> Example:
    looked = subprocess.run([PYTHON, "-c", LOOK, package], check=False)
    if looked.returncode:
        pytest.skip(f"{PYTHON} has no {package}: set EXAMPLES_PYTHON to an interpreter that has")
    return Example([PYTHON, "-u", *(command or ["worker.py"])], **how)


def node(folder: Path) -> Example:
    """Its package.json names the client by its place in the repository."""
    placed = folder.parents[1] / "clients" / "node"
    shutil.copytree(ROOT / "clients" / "node", placed, ignore=shutil.ignore_patterns("node_modules", "test"))
    runtimes.install_packages(folder)
    return Example(["node", "worker.js"])


def java() -> Example:
    return Example(["java", "-cp", runtimes.java_classpath(), "Worker.java"])


def documented(language: str, folder: Path) -> Example:
    """The program of docs/clients.md, with a shop that it can ship from."""
    page = (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
    kind, name, shop = {"node": ("js", "worker.js", NODE_SHOP), "java": ("java", "Worker.java", JAVA_SHOP)}[language]
    (program,) = re.findall(rf"^```{kind}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (folder / name).write_text(program, encoding="utf-8")
    if language == "node":
        (folder / "shop.js").write_text(shop, encoding="utf-8")
        return node(folder)
    (folder / "Shop.java").write_text(shop, encoding="utf-8")
    classpath = f"{runtimes.java_classpath()}:{folder}"
    runtimes.run("javac", "-cp", classpath, "-d", folder, folder / "Worker.java", folder / "Shop.java")
    return Example(["java", "-cp", classpath, "Worker"])


def example(name: str, folder: Path) -> Example:
    send = [PYTHON, "worker.py", json.dumps(ORDER)]
    match name:
        case "thread-pool":
            return python("pika")
        case "faststream":
            return python("faststream")
        case "dramatiq":
            command = ("-m", "dramatiq", "worker", "--processes", "1", "--threads", "2")
            return python("dramatiq", *command, send=send, reports=False)
        case "celery":
            quiet = ("--concurrency=1", "--without-gossip", "--without-mingle")
            task = ("-m", "celery", "-A", "worker", "worker", *quiet)
            return python("celery", *task, send=send, attached=True, reports=False)
        case "node-client":
            return node(folder)
        case "java-client":
            return java()
        case _:
            return documented(name.partition("-")[0], folder)


@pytest.fixture(scope="module")
def service(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ShippedService]:
    """One service for all examples."""
    with serving_a_file(broker, services, tmp_path_factory.mktemp("service"), 0.05) as made:
        yield made


@pytest.fixture
def queue(service: ShippedService) -> Iterator[str]:
    """All examples have one of the same name, each with other arguments."""
    yield "orders"
    service.channel.queue_delete("orders")


@pytest.mark.parametrize(
    "name",
    [
        "thread-pool",
        "faststream",
        "dramatiq",
        "node-client",
        "node-documented",
        "java-client",
        "java-documented",
        "celery",
    ],
)
def test_an_order_is_tried_until_it_succeeds(name: str, service: ShippedService, queue: str, tmp_path: Path) -> None:
    folder = tmp_path / "examples" / name
    shutil.copytree(
        EXAMPLES / name.replace("documented", "client"),
        folder,
        ignore=shutil.ignore_patterns("node_modules", "__pycache__"),
    )
    one, before = example(name, folder), retries(service)
    settings = os.environ | service.environment | {"PYTHONPATH": str(ROOT / "src")}
    with running(one.command, settings, folder) as worker:
        wait_for(
            lambda: worker.process.poll() is not None or consumers(service, queue),
            deadline=120,
            what=f"{name} to consume",
        )
        assert worker.process.poll() is None, worker.text
        if one.attached:
            service.tarry("attach", queue)
        if one.send is None:
            service.work(queue, f"{name}-1", json.dumps(ORDER).encode(), tenant="acme")
        else:
            subprocess.run(one.send, env=settings, cwd=folder, check=True, capture_output=True)
        expected = [{"order": 1, "attempt": number} for number in (1, 2, 3)]
        wait_for(lambda: attempts(worker.text) == expected, deadline=120, what=f"three attempts by {name}")
        wait_for(lambda: service.depth(queue) == 0, what="the last to be acknowledged")
        final = ["succeeded" if one.reports else "returned"]
        wait_for(lambda: states(service, before) == final, deadline=60, what="its state in the store")
    if one.attached:  # or the service would find that it is attached and gone, and refuse other policies
        service.tarry("detach", queue)


def test_a_consumer_of_a_check_queue_skips_what_is_not_wanted(service: ShippedService, tmp_path: Path) -> None:
    policies = service.installation.folder / "policies"
    (policies / "05-reminders.toml").write_text(CHECKED, encoding="utf-8")
    service.tarry("topology", "apply")
    service.router.wait_logged("topology reloaded", 60)
    queue = service.queue("reminders")
    inactive, before = tmp_path / "inactive.txt", retries(service)
    inactive.write_text("d-2\n", encoding="utf-8")
    script = EXAMPLES / "eligibility" / "consumer.py"
    command = python("pika", str(script), "retry.check.1m.reminders", str(inactive))
    try:
        with running(command.command, os.environ | service.environment, tmp_path) as worker:
            for device in ("d-1", "d-2"):
                service.request(b"notify", original_queue=queue, device_id=device, message_id=device)
            assert service.arrival(queue).headers["device_id"] == "d-1"
            wait_for(lambda: sorted(states(service, before)) == ["returned", "skipped"], deadline=60, what="both ends")
            said = [json.loads(line) for line in worker.text.splitlines() if line.startswith('{"device"')]
        assert sorted(said, key=str) == [{"device": "d-1", "returns": True}, {"device": "d-2", "returns": False}]
        assert service.depth(queue) == 0
    finally:
        (policies / "05-reminders.toml").unlink()


def attempts(text: str) -> list[dict[str, int]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith('{"order"')]


def consumers(service: ShippedService, queue: str) -> int:
    return sum(one["queue"]["name"] == queue for one in service.installation.api("consumers/{vhost}"))


def retries(service: ShippedService) -> dict[str, str]:
    """The state of each, by its id."""
    with psycopg.connect(service.installation.dsn) as connection:
        return {str(retry): state for retry, state in connection.execute("select id, state from retry")}


def states(service: ShippedService, before: dict[str, str]) -> list[str]:
    """Of those that are new."""
    return [state for retry, state in retries(service).items() if retry not in before]
