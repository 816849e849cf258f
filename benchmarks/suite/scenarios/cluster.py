"""Three nodes on this machine, every queue on all of them: what replication costs, for the model in docs/scaling.md.

Three nodes share the cores that one had, so the figure to look at is processor time for each retry, not the rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from benchmarks.contenders.protocol import Job
from benchmarks.contenders.registry import by_slug
from benchmarks.router.stage import Stage
from benchmarks.suite.bench import SHORT_S, Bench
from benchmarks.suite.throughput import end_to_end
from tarry import embedded

NAME = "cluster"
COUNT = 20_000


@dataclass(frozen=True)
class Cluster(Stage):
    """Clients talk to the first node; all of them work."""

    nodes: tuple[embedded.Broker, ...] = ()

    @property
    def broker_pids(self) -> list[int]:
        return [node.pid for node in self.nodes if node.pid]


def run(bench: Bench) -> None:
    bench.attempt(NAME, "1 node", partial(_measure, bench, bench.on, "1 node"))
    bench.attempt(NAME, "3 nodes", partial(_three, bench))


def _three(bench: Bench) -> None:
    series = ".".join(bench.on.broker.version.split(".")[:2])
    with embedded.cluster(3, series) as nodes:
        _measure(bench, Cluster(nodes[0], bench.on.postgres, tuple(nodes)), "3 nodes")


def _measure(bench: Bench, on: Stage, subject: str) -> None:
    for repeat in range(min(bench.repeats, 2)):
        figures = end_to_end(on, by_slug("tarry"), Job(SHORT_S), bench.size(COUNT))
        bench.note(NAME, subject, repeat, **figures)
