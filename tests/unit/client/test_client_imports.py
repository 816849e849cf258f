"""What a user's service must not have to install, or pay for with its start."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = [
    "aiohttp",
    "fastapi",
    "google",
    "prometheus_client",
    "psycopg",
    "psycopg_pool",
    "pydantic",
    "pydantic_settings",
]
HEAVY += [
    "opentelemetry",
    "pyrabbit2",
    "requests",
    "httpx",
    "rich",
    "starlette",
    "structlog",
    "typer",
    "uvicorn",
    "uvloop",
]
OTHER = {"tarry.client": ["pika", "aio_pika"], "tarry.client.pika": ["aio_pika"], "tarry.client.aio_pika": ["pika"]}
OTHER["tarry.client.deduplicator_postgres"] = ["pika", "aio_pika"]


@pytest.mark.parametrize("module", OTHER)
def test_it_brings_in_its_own_library_and_nothing_else(module: str) -> None:
    code = f"import sys, {module}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert loaded.isdisjoint(HEAVY + OTHER[module]), loaded & {*HEAVY, *OTHER[module]}


def test_nothing_of_the_service_comes_along() -> None:
    code = "import sys, tarry.client.pika, tarry.client.aio_pika; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = {name.split(".")[1] for name in done.stdout.split() if name.startswith("tarry.")}
    assert ours == {"amqp", "client", "contract", "core", "errors"}
