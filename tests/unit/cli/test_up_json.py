"""`tarry up --json` prints the addresses as one line, and nothing else, on standard output."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from tarry.amqp.url import Address
from tarry.cli import demo
from tarry.demo.stage import StageOptions
from tests.support.cli import run_cli

ADDRESS = Address.parse("amqp://guest:guest@127.0.0.1:1/", management_url="http://127.0.0.1:2")


def test_up_prints_the_addresses_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def stage(_: StageOptions, show: Callable[[str], None]) -> Iterator[SimpleNamespace]:
        show("The service is ready.")
        yield SimpleNamespace(
            address=ADDRESS,
            dsn="postgresql://127.0.0.1:3/tarry",
            http_url="http://127.0.0.1:4",
            service_log=Path("log"),
        )

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "stage", stage)
    monkeypatch.setattr(demo, "_wait", interrupted)
    done = run_cli(["up", "--json", "--data-dir", "data"])
    assert (done.exit_code, len(done.stdout.splitlines()), "The service is ready." in done.stderr) == (0, 1, True)
    assert json.loads(done.stdout) == {
        "rabbitmq_url": ADDRESS.url,
        "management_url": ADDRESS.management_with_login,
        "database_url": "postgresql://127.0.0.1:3/tarry",
        "http_url": "http://127.0.0.1:4",
        "data_dir": "data",
        "service_log": "log",
    }


def test_up_does_not_mix_the_log_with_json() -> None:
    refused = run_cli(["up", "--json", "--follow"])
    assert (refused.exit_code, "either --json or --follow" in refused.stderr) == (2, True)
