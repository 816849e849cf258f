"""A result as a run leaves it, with round figures."""

from __future__ import annotations

from typing import Any

from benchmarks.suite.samples import Failure, Sample, Samples

FACTS = {"durable": "yes", "delays": "any", "same_queue": "yes", "audit": "no | none"}


def result(*samples: Sample, failures: tuple[Failure, ...] = (), quick: bool = False) -> dict[str, Any]:
    return {
        "machine": {
            "date": "2026-01-01",
            "cores": 2,
            "processor": "a processor",
            "memory_gib": 8,
            "kernel": "6.1",
            "python": "3.11",
            "rabbitmq": "4.3.6",
            "postgresql": "18",
            "load_before": 0.1,
        },
        "quick": quick,
        "repeats": 2,
        "scale": 1.0,
        "seconds": {"end-to-end": 61.0},
        "contenders": {
            slug: {"name": name, "versions": {"thing": "1.2"}, "settings": {"a": "b"}, "facts": FACTS, "requests": 9}
            for slug, name in (("tarry", "tarry"), ("other", "The other"))
        },
        **Samples(samples, failures).as_json(),
    }


def rates(scenario: str, subject: str, *values: float) -> list[Sample]:
    return [Sample(scenario, subject, "per_s", value, repeat) for repeat, value in enumerate(values)]
