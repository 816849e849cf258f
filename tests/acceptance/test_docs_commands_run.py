"""Every command of the pages, of `tarry` and of its API, run as it is written and in the order of its page.

The service has a history. A reader's ids, addresses and file names are replaced by real ones. What else is typed, or
does not end by itself, is in ELSEWHERE of tests/support/documentation.py.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.api import OPERATE, TOKENS, ApiInstallation
from tests.support.cli import run_cli
from tests.support.documentation import PAGES, ROOT, run_elsewhere, typed
from tests.support.hurry import HURRIED
from tests.support.installation import Installation
from tests.support.receiver import SECRET, Receiver, receiving
from tests.support.router import start_router
from tests.support.services import Services
from tests.support.spaces import SharedBroker, drop_database, drop_vhost, make_database, make_vhost
from tests.support.waiting import wait_for

pytestmark = pytest.mark.one_series

ENDS_WITH = {
    "tarry detach orders": (1, "messages in flight may need it"),
    "tarry audit recover --review --yes": (6, "manual-review.pending is not empty"),
}
"""Commands that do not end with 0 here, because messages wait and are in review, and what they say."""

TOPOLOGY = """
[ladder]
levels = 4

[events]
enabled = true

[[webhook]]
name = "on-call"
url = "http://127.0.0.1:{port}/hook"
secret_env = "ON_CALL_SECRET"
events = ["exhausted", "in_review"]
allow_private = true

[[policy]]
name = "shots"
match = {{ queue = "shots.*" }}
schedule = ["250ms"]
max_retries = 3

[[policy]]
name = "screenshots"
match = {{ queue = "screenshots.*" }}
schedule = ["5m"]
max_retries = 3
budget = {{ per = "owner", limit = 100, every = "1d" }}

[[policy]]
name = "invoices"
match = {{ queue = "invoices.*" }}
schedule = ["5m"]
max_retries = 3

[[policy]]
name = "email"
match = {{ queue = "email.*" }}
schedule = ["5m"]
max_retries = 3

[[policy]]
name = "orders"
match = {{ queue = "orders*" }}
schedule = [{delays}]
max_retries = 3
breaker = {{ failed = "50%" }}
adaptive = {{ give_up_below = "1%" }}

[[policy]]
name = "default"
schedule = ["5m"]
max_retries = 3
"""
QUEUES = ("orders", "orders.eu", "billing.eu", "celery", "email.welcome", "invoices.eu", "shots.web")
NEW_POLICY = '[[policy]]\nname = "orders"\nmatch = { queue = "orders*" }\nschedule = ["1m"]\nmax_retries = 1\n'
MESSAGE = {"payload": "work", "payload_encoding": "string", "properties": {"headers": {"original_queue": "orders"}}}
FILES = {
    "message.json": json.dumps(MESSAGE),
    "fixed.json": "{}",
    "new.toml": NEW_POLICY,
    "better.toml": NEW_POLICY,
    "deploy.txt": "a password for deploying",
    "router.txt": "a password of the router",
}
"""What the commands of the pages read."""
AFTERWARDS = (
    "tarry resume '*'",
    "tarry resume orders",
    "tarry resume --policy invoices",
    "tarry resume --type automatic-retries",
    "tarry intake resume",
    "tarry breakers auto orders",
)
"""So that no page depends on the pauses of the one before."""


@dataclass
class Reader:
    """Somebody who types what a page says."""

    api: ApiInstallation
    receiver: Receiver
    folder: Path
    number: int = 0

    @property
    def environment(self) -> dict[str, str]:
        passwords = {"TARRY_DEPLOY_PASSWORD": "for-deploying", "TARRY_ROUTER_PASSWORD": "for-the-router"}
        own = {"ON_CALL_SECRET": SECRET, "TARRY_TOKEN": OPERATE, "COLUMNS": "200"}
        return self.api.installation.environment | passwords | own

    def next(self, word: str) -> str:
        self.number += 1
        return f"{word}-{self.number}"

    def waiting(self) -> str:
        """The id of a retry that waits."""
        return self.api.schedule("orders", self.next("waits"), owner="acme", error_type="Timeout")

    def in_review(self, queue: str = "orders") -> str:
        message = self.next("failed")
        self.api.installation.request(
            queue,
            message,
            b'{"tenant": 7}',
            error_class="final",
            error_type="Timeout",
            error_reason="too slow",
            owner="acme",
            trace="on",
        )
        found = self.api.installation.retry_of(message)
        self.api.wait_state(found, "in_review")
        return found

    def shown_in_review(self) -> int:
        """What the management API shows, which is some seconds old."""
        return int(self.api.installation.api("queues/{vhost}/manual-review.pending").get("messages", 0))

    def fingerprint(self) -> str:
        found = self.in_review()
        ((text,),) = self.api.installation.rows("select fingerprint from retry where id = %s", found)
        return str(text)

    def stuck(self) -> str:
        """The id of a retry whose attempt began two hours ago."""
        api, message = self.api, self.next("hangs")
        api.installation.request("shots.web", message)
        retry = api.installation.retry_of(message)
        own = self.headers_of(message)
        entry = {"id": own["tarry-id"], "round": own["tarry-round"], "outcome": "started", "consumer": "host-1:99"}
        report = json.dumps({"outcomes": [entry | {"at_ms": own["tarry-due-ms"]}]}).encode()
        api.installation.channel.basic_publish("retry.reports", "", report, mandatory=True)
        age = "update attempt_start set seen_at = seen_at - interval '2 hours' where retry_id = %s"

        def aged() -> int:
            with psycopg.connect(api.installation.dsn, autocommit=True) as connection:
                return connection.execute(age.encode(), (retry,)).rowcount

        wait_for(aged, what="the start to be stored")
        return retry

    def headers_of(self, message: str) -> dict[str, Any]:
        """Those with which it returns; what was recovered for an earlier line is left out."""
        while True:
            properties, _ = self.api.installation.wait_message("shots.web")
            if properties.message_id == message:
                return dict(properties.headers or {})

    def job(self) -> str:
        """The id of a job that was stopped."""
        self.in_review()
        self.run("tarry review redrive --queue orders --yes")
        stopped = (
            "update review_job set wanted = 'stop', finished_at = null where id = "
            "(select id from review_job order by created_at desc limit 1) returning id"
        )
        ((found,),) = self.api.installation.rows(stopped)
        return str(found)

    def unused_tier(self) -> None:
        """A tier of 7 s that no policy uses."""
        for delays in ('"7s", "5m"', '"5m"'):
            text = TOPOLOGY.format(port=self.receiver.port, delays=delays)
            self.api.installation.write_policies(text)
            self.api.installation.apply()

    def prepared(self, line: str) -> str:
        """The line with real ids, for which there is something to be done."""
        made: dict[str, Callable[[], str]] = {
            "5f0c": self.waiting,
            "77ab": self.waiting,
            "1f3a": self.stuck,
            "4d5b": self.job,
            "9c1e": self.fingerprint,
            "41c8": self.fingerprint,
            "3f9a": self.fingerprint,
            "<id>…": self.in_review,
            "<id>": self.in_review,
            "<retry id>": self.in_review,
            "'shots.*'": lambda: (self.stuck(), "'shots.*'")[1],
            "NAME": lambda: "on-call",
            "http://127.0.0.1:8086": lambda: self.api.url,
            "/tmp/orders": lambda: str(self.folder / self.next("export")),  # noqa: S108 - the page's own
            "./orders-2030-01-31": lambda: self.next("export"),
        }
        for text, make in made.items():
            if text in line:
                line = line.replace(text, make())
        if re.search(r"review (redrive|discard|export|list|show)|retries redrive|recover --review", line):
            self.in_review("orders.eu" if "'orders.*'" in line else "orders")
        if "recover --review" in line:
            wait_for(self.shown_in_review, deadline=60, what="the broker's statistics of the review queue")
        if re.search(r"retries (cancel|retry-now)", line):
            self.waiting()
            self.api.schedule("email.welcome", self.next("mail"))
        if "stuck recover --all" in line:
            self.stuck()
        if "drain retry.delay.7s" in line:
            self.unused_tier()
        if "--peek" in line:
            self.api.installation.channel.basic_publish("", "orders", b"work", mandatory=True)
        return line

    def call(self, line: str) -> tuple[int, str]:
        """A request; `--fail` makes curl exit with 22 if the status is an error."""
        done = subprocess.run(
            ["sh", "-c", line.replace("curl ", "curl --fail-with-body ", 1)],
            env=os.environ | self.environment | {"TARRY_API": self.api.url},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def run(self, line: str) -> tuple[int, str]:
        """Its exit code and output. It says yes if it is asked."""
        if line.startswith("curl "):
            return self.call(line)
        words = shlex.split(line.partition(" > ")[0].partition(" | ")[0])
        assert words.pop(0) == "tarry"
        done = run_cli(words, self.environment)
        if done.exit_code and "--yes" in done.output and "--yes" not in words:
            done = run_cli([*words, "--yes"], self.environment)
        return done.exit_code, done.output


@pytest.fixture(scope="module")
def reader(broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Of a service that is ready, with queues and a message with the id of the pages."""
    folder = tmp_path_factory.mktemp("reader")
    vhost, database = (
        make_vhost(broker.amqp_url, broker.management_url, broker.version),
        make_database(services.postgres()),
    )
    made = Installation(vhost.amqp_url, vhost.management_url, database.dsn, folder / "installed")
    with receiving() as receiver:
        made.write_policies(TOPOLOGY.format(port=receiver.port, delays='"5m"'))
        made.apply()
        for queue in QUEUES:
            made.declare(queue)
        made.channel.exchange_declare("events", "topic", durable=True)
        router = start_router(made, **(HURRIED | TOKENS | {"ON_CALL_SECRET": SECRET, "TARRY_RECOVER_STUCK_EVERY": "0"}))
        api = ApiInstallation(made, router.wait_ready())
        try:
            api.schedule("orders", "ORDER-4711")
            yield Reader(api, receiver, folder)
        finally:
            api.close()
            router.process.terminate()
            router.process.wait(timeout=60)
            made.close()
    drop_vhost(vhost)
    drop_database(services.postgres(), database)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(run_elsewhere(page, line) is None for line in typed(page))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_docs_commands_do_what_their_page_says(page: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    here = reader.folder / reader.next("page")
    here.mkdir()
    for name, text in FILES.items():
        (here / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(here)
    wrong = []
    for line in dict.fromkeys(typed(page)):
        if run_elsewhere(page, line) is not None:
            continue
        expected = ENDS_WITH.get(line, (0, ""))
        code, output = reader.run(reader.prepared(line))
        if code != expected[0] or expected[1] not in output:
            wrong.append(f"$ {line}\n{output.strip()[-600:]}\nexit code {code}")
    for line in AFTERWARDS:
        reader.run(line)
    assert not wrong, "\n\n".join(wrong)
