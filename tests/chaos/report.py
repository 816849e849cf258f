"""The judge's verdicts as a table, as JSON and as a page."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tarry import __version__
from tests.chaos.judge import LATE_MS, Verdict

COLUMNS = (
    "broker",
    "fault",
    "messages",
    "returns",
    "lost",
    "early",
    "twice",
    "bound",
    "drift p50 / p99 / max",
    "back after",
)


SOAK = "## An hour of it"
"""Where the section of `make soak` begins."""


@dataclass(frozen=True)
class Line:
    """One fault on one broker."""

    broker: str
    fault: str
    title: str
    verdict: Verdict | None = None
    skipped: str | None = None
    """Why it was not run."""
    broken_off: bool = False
    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)

    @property
    def proven(self) -> bool:
        return self.verdict is not None and self.verdict.proven

    def __str__(self) -> str:
        return f"{' '.join(self.cells())} ({self.seconds:.0f} s: {self.phases})"

    def cells(self) -> list[str]:
        found = self.verdict
        if found is None:
            return [self.broker, self.fault, f"not run: {self.skipped}", *[""] * (len(COLUMNS) - 3)]
        recovery = "" if found.recovery_s is None else f"{found.recovery_s:.1f} s"
        return [
            self.broker,
            self.fault,
            f"{found.messages:,}",
            f"{found.returns:,}",
            f"{len(found.lost):,}",
            f"{len(found.early):,}",
            f"{found.duplicates:,}",
            f"{found.allowance.duplicates:,}",
            " / ".join(span(found.drift(share)) for share in (0.5, 0.99, 1.0)),
            recovery,
        ]

    def fields(self) -> dict[str, Any]:
        found = self.verdict
        told = {"broker": self.broker, "fault": self.fault, "title": self.title, "seconds": round(self.seconds, 1)}
        if found is None:
            return told | {"not_run": self.skipped}
        return told | {
            "proven": found.proven,
            "messages": found.messages,
            "returns": found.returns,
            "lost": len(found.lost),
            "early": len(found.early),
            "unaccounted": len(found.unaccounted),
            "duplicates": found.duplicates,
            "duplicates_bound": found.allowance.duplicates,
            "duplicates_reason": found.allowance.reason,
            "redelivered_by_broker": found.redelivered,
            "published_twice_by_producer": found.sent_twice,
            "dropped_as_duplicates": found.dropped,
            "in_review": found.in_review,
            "diverted_to_review": found.diverted,
            "deleted_with_their_queue": found.gone,
            "drift_ms": {"p50": found.drift(0.5), "p99": found.drift(0.99), "max": found.drift(1.0)},
            "recovery_s": found.recovery_s,
            "phases_s": self.phases,
            "complaints": found.complaints(),
        }


@dataclass(frozen=True)
class Report:
    """A whole run."""

    seed: int
    began: datetime
    seconds: float
    lines: Sequence[Line]

    @property
    def proven(self) -> bool:
        return all(line.proven for line in self.lines if line.verdict is not None)

    @property
    def messages(self) -> int:
        return sum(line.verdict.messages for line in self.lines if line.verdict)

    def versions(self) -> dict[str, str]:
        return versions(sorted({line.broker for line in self.lines}))

    def write_json(self, path: Path) -> None:
        told = {
            "seed": self.seed,
            "began": self.began.astimezone(UTC).isoformat(),
            "seconds": round(self.seconds),
            "versions": self.versions(),
            "messages": self.messages,
            "proven": self.proven,
            "faults": [line.fields() for line in self.lines],
        }
        path.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")

    def show(self, console: Console) -> None:
        table = Table(*COLUMNS, title=f"{self.messages:,} messages, seed {self.seed}")
        for line in self.lines:
            table.add_row(*line.cells(), style="" if line.proven else "yellow" if line.verdict is None else "bold red")
        console.print(table)
        for line in self.lines:
            for complaint in line.verdict.complaints() if line.verdict else ():
                console.print(f"{line.broker} {line.fault}: {complaint}", style="red", markup=False)

    def _facts(self) -> str:
        versions = self.versions()
        minutes = f"{self.seconds / 60:.0f} minutes on {os.cpu_count()} cores"
        load = f"seed {self.seed}, {self.messages:,} messages in {minutes}"
        programs = f"tarry {versions['tarry']}, Python {versions['Python']}, RabbitMQ {versions['brokers']}"
        return f"{self.began:%Y-%m-%d}: {load}; {programs}."

    def write_page(self, path: Path) -> None:
        """Above the section of `make soak`, which stays."""
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        _, found, soak = before.partition(SOAK)
        path.write_text(self.page() + found + soak, encoding="utf-8")

    def page(self) -> str:
        """docs/reliability.md."""
        lines = [
            INTRODUCTION,
            self._facts(),
            "",
            *markdown([COLUMNS, *(line.cells() for line in self.lines)]),
            "",
            "## What each fault is, and why copies may come",
            "",
            *markdown([("fault", "what happens", "copies at most, because"), *_reasons(self.lines)]),
            "",
        ]
        return "\n".join(lines)


INTRODUCTION = f"""# Proof under fire

<!-- Written by `make chaos` from a real run: do not edit. -->

`make chaos` numbers every message, writes it into a ledger on disk before it is published, writes every arrival at a
consumer to disk before it is acknowledged, breaks things meanwhile, and then holds ledger, arrivals, the review queue
and the audit (`tarry audit verify`) against each other. What it cannot account for fails the run.

- **lost**: confirmed to the producer, and neither accepted by its consumer nor in review. Must be 0.
- **early**: came back sooner after its failure than its policy says, by the consumer's clock, or before its due moment.
  Must be 0.
- **twice**: copies that tarry made; **bound** is how many the fault can explain. Copies that the broker gave a consumer
  again because its acknowledgement got lost, or that the producer published again for want of a confirm, are counted
  apart, in the JSON.
- **drift**: arrival after the due moment, over all returns of the scene, those during the fault included. Where the
  router's clock is the fault, its due moments say nothing: there it is what the wait was longer than planned.
- **back after**: from the end of the fault until the last message that was over {LATE_MS / 1000:g} s late had come.

A broker offers a message that a full or broken queue refused again after three minutes; here after ten seconds, to keep
the run short.
"""


def versions(brokers: Sequence[str]) -> dict[str, str]:
    return {"tarry": __version__, "Python": platform.python_version(), "brokers": ", ".join(brokers)}


def _reasons(lines: Sequence[Line]) -> list[Sequence[str]]:
    found = {
        line.fault: (line.fault, line.title, f"{line.verdict.allowance.duplicates:,}: {line.verdict.allowance.reason}")
        for line in lines
        if line.verdict
    }
    return list(found.values())


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    head, *rest = rows
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rest)]


def span(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.1f} s" if milliseconds >= 10_000 else f"{milliseconds} ms"
