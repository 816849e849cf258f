"""Task frameworks: each runs its own worker, which fails every task once and asks for a retry.

Their programs are in `apps` and run in the environment of `benchmarks/requirements.lock`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.contenders.protocol import Command, Facts, Job, bench_module, bench_python, poll_environment
from benchmarks.router.stage import Space

PREPARES = ("procrastinate_app",)


@dataclass
class Framework:
    """`python -m apps.<program> send COUNT BYTES PER_SECOND` sends; `worker` is the command of its own worker."""

    slug: str
    name: str
    size: int
    program: str
    worker: Sequence[str]
    packages: Sequence[str]
    facts: Facts
    settings: Mapping[str, str]
    extra: Mapping[str, str]
    broker: bool = True
    due_header: str | None = None
    furnished: bool = False

    def versions(self) -> dict[str, str]:
        code = "import importlib.metadata as m, json, sys; print(json.dumps({p: m.version(p) for p in sys.argv[1:]}))"
        done = subprocess.run(
            [bench_python(), "-c", code, *self.packages], capture_output=True, text=True, check=True, timeout=60
        )
        return dict(json.loads(done.stdout))

    def prepare(self, space: Space, _job: Job) -> None:
        """Their own workers declare what they need."""
        if self.program in PREPARES:
            command = bench_module(self.program, "prepare", space.dsn)
            subprocess.run(command, check=True, timeout=60, capture_output=True)

    def send(self, _space: Space, job: Job, count: int, per_second: int) -> Command:
        return bench_module(self.program, "send", count, job.body, per_second)

    def work(self, _space: Space, _job: Job) -> Sequence[Command]:
        return [[bench_python(), "-m", *self.worker]]

    def environment(self, _space: Space, job: Job, _place: int) -> dict[str, str]:
        return {**self.extra, **poll_environment(job)}
