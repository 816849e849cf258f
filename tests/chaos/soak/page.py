"""What a soak found, as JSON and as a section of the page on reliability."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.chaos.report import SOAK, markdown, span, versions
from tests.chaos.soak.run import Soak, names
from tests.chaos.soak.samples import EVERY, RULE

WORDS = {
    "router_mib": "memory of the router that lasts, MiB",
    "broker_mib": "memory of the broker, MiB",
    "judge_mib": "memory of the judge, MiB",
    "router_descriptors": "file descriptors of that router",
    "router_threads": "threads of that router",
    "connections": "connections in the vhost, of routers, workers and producer",
    "channels": "channels in the vhost",
    "postgres_connections": "connections of the database",
}


def figures(soak: Soak, began: datetime) -> dict[str, Any]:
    found = soak.verdict
    return {
        "seed": soak.seed,
        "began": began.astimezone(UTC).isoformat(),
        "minutes": soak.minutes,
        "rate": soak.rate,
        "versions": versions([soak.stage.version]),
        "proven": soak.proven,
        "messages": found.messages,
        "returns": found.returns,
        "lost": len(found.lost),
        "early": len(found.early),
        "unaccounted": len(found.unaccounted),
        "duplicates": found.duplicates,
        "duplicates_bound": found.allowance.duplicates,
        "redelivered_by_broker": found.redelivered,
        "published_twice_by_producer": found.sent_twice,
        "in_review": found.in_review,
        "drift_ms": {"p50": found.drift(0.5), "p99": found.drift(0.99), "max": found.drift(1.0)},
        "faults": names(soak.struck),
        "rule": RULE,
        "trends": [asdict(one) for one in soak.trends],
        "complaints": complaints(soak),
        "samples": [asdict(one) for one in soak.samples],
    }


def complaints(soak: Soak) -> list[str]:
    growing = [f"{one.name} grew from {one.first:g} to {one.last:g}" for one in soak.trends if not one.flat]
    return [*soak.verdict.complaints(), *growing]


def write_json(soak: Soak, began: datetime, path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(figures(soak, began), indent=1) + "\n", encoding="utf-8")


def section(soak: Soak, began: datetime) -> str:
    found, told = soak.verdict, versions([soak.stage.version])
    drift = " / ".join(span(found.drift(share)) for share in (0.5, 0.99, 1.0))
    load = (
        f"{soak.minutes:g} minutes at {soak.rate:g} messages a second ({found.messages / (60 * soak.minutes):.0f} on "
        "average: the producer waits while the broker is down or has an alarm) with a fault each minute, seed "
        f"{soak.seed}, on {os.cpu_count()} cores"
    )
    programs = f"tarry {told['tarry']}, Python {told['Python']}, RabbitMQ {told['brokers']}"
    struck = ", ".join(f"{name} {count}×" for name, count in names(soak.struck).items())
    return "\n".join(
        [
            SOAK,
            "",
            f"`make soak`, {began:%Y-%m-%d}: {load}; {programs}.",
            "",
            *markdown(
                [
                    ("messages", "returns", "lost", "early", "twice", "bound", "drift p50 / p99 / max"),
                    (
                        f"{found.messages:,}",
                        f"{found.returns:,}",
                        f"{len(found.lost):,}",
                        f"{len(found.early):,}",
                        f"{found.duplicates:,}",
                        f"{found.allowance.duplicates:,}",
                        drift,
                    ),
                ]
            ),
            "",
            f"Faults: {struck}.",
            "",
            f"Sampled every {EVERY:g} s. Flat means: {RULE}.",
            "",
            *markdown(
                [
                    ("what", "first third", "last third", "most", "flat"),
                    *(
                        (
                            WORDS[one.name],
                            f"{one.first:g}",
                            f"{one.last:g}",
                            f"{one.most:g}",
                            "yes" if one.flat else "no",
                        )
                        for one in soak.trends
                    ),
                ]
            ),
            "",
        ]
    )


def write_section(soak: Soak, began: datetime, page: Path) -> None:
    """In its place at the end of the page; what stands above it is `make chaos`'s."""
    above = page.read_text(encoding="utf-8").partition(SOAK)[0] if page.exists() else "# Proof under fire\n\n"
    page.write_text(above + section(soak, began), encoding="utf-8")
