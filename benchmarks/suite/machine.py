"""What the run ran on, and with which versions and settings: the report names all of it."""

from __future__ import annotations

import datetime as dt
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.contenders.protocol import Contender
from benchmarks.router.stage import Stage


def machine(on: Stage) -> dict[str, Any]:
    with psycopg.connect(on.postgres.dsn()) as sql:
        row = sql.execute("select current_setting('server_version'), current_setting('fsync')").fetchone()
    version, fsync = row or ("?", "?")
    return {
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "processor": _processor(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "rabbitmq": f"{on.broker.version}, one node, its defaults",
        "postgresql": f"{version}, its defaults (fsync {fsync})",
        "load_before": round(os.getloadavg()[0], 1),
    }


def described(contenders: Sequence[Contender]) -> dict[str, dict[str, Any]]:
    """By slug: name, versions, settings, and what it can and cannot do."""
    return {
        one.slug: {
            "name": one.name,
            "versions": _versions(one),
            "settings": dict(one.settings),
            "facts": asdict(one.facts),
            "requests": one.size,
        }
        for one in contenders
    }


def _versions(one: Contender) -> dict[str, str]:
    try:
        return one.versions()
    except Exception as error:  # noqa: BLE001 - a contender that is not installed is a row that says so
        return {"not installed": str(error)[:120]}


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
