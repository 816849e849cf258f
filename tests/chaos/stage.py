"""What the scenes of a run share: a broker or three, and a PostgreSQL. Each scene gets a vhost and a database of it."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tarry import embedded
from tarry.embedded import EmbeddedPostgres
from tarry.embedded.node import Node
from tests.chaos.disk import SmallDisk, small_disk
from tests.support.proxy import Proxy
from tests.support.spaces import Vhost, address_of, make_vhost, with_port

Kind = Literal["4.3", "3.10", "any", "cluster"]
KINDS: tuple[Kind, ...] = ("4.3", "cluster", "3.10")

OFFER_AGAIN_MS = 10_000
"""The broker offers a refused message again after 180 s; so long a wait would only make the run longer."""

POSTGRES = ("max_connections=200", "max_wal_size=256MB")


class Balancer(Proxy):
    """As a load balancer before a cluster: each new connection goes to the next node. A client that got a dead one
    is cut off at once and comes again.
    """

    def __init__(self, targets: Sequence[tuple[str, int]]) -> None:
        super().__init__(targets[0])
        self._turns = itertools.cycle(targets)

    @property
    def target(self) -> tuple[str, int]:
        return next(self._turns)

    @target.setter
    def target(self, _: tuple[str, int]) -> None:
        """There is no single one."""


@dataclass(frozen=True)
class Stage:
    """Services that outlive the scenes."""

    kind: Kind
    nodes: Sequence[embedded.Broker]
    cluster: embedded.EmbeddedCluster | None
    postgres: EmbeddedPostgres
    disk: SmallDisk | None
    """Where Postgres keeps its data, if it can be filled."""
    amqp_url: str
    management_url: str

    @property
    def version(self) -> str:
        return self.nodes[0].version

    def ctl(self, *arguments: str) -> None:
        """On every node."""
        for node in self.nodes:
            node.ctl(*arguments)

    def offer_again_soon(self) -> None:
        """From now on, and for those that start again: a worker keeps what it was begun with."""
        name = "dead_letter_worker_publisher_confirm_timeout"
        self.ctl("eval", f"application:set_env(rabbit, {name}, {OFFER_AGAIN_MS}).")
        for node in self.nodes:
            if isinstance(node, Node):
                node.erlang_args = [f"-rabbit {name} {OFFER_AGAIN_MS}"]

    def vhost(self) -> Vhost:
        return make_vhost(self.amqp_url, self.management_url, self.version)

    def node(self, index: int) -> Node:
        if self.cluster is None:
            raise AssertionError("only a cluster has nodes to choose from")
        return self.cluster[index]


@contextlib.contextmanager
def stage(kind: Kind, *, fillable: bool = True) -> Iterator[Stage]:
    """`fillable` puts Postgres on a small disk in memory, if we may mount one."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tarry-chaos-")))
        folder.chmod(0o755)
        disk = stack.enter_context(small_disk(folder / "disk")) if fillable else None
        postgres = stack.enter_context(embedded.postgres(disk.folder if disk else None, settings=POSTGRES))
        made = _cluster(stack, postgres, disk) if kind == "cluster" else _single(stack, kind, postgres, disk)
        made.offer_again_soon()
        yield made


def _single(stack: contextlib.ExitStack, kind: Kind, postgres: EmbeddedPostgres, disk: SmallDisk | None) -> Stage:
    node = stack.enter_context(embedded.broker(None if kind == "any" else kind))
    return Stage(kind, [node], None, postgres, disk, node.amqp_url, node.management_url)


def _cluster(stack: contextlib.ExitStack, postgres: EmbeddedPostgres, disk: SmallDisk | None) -> Stage:
    nodes = stack.enter_context(embedded.cluster(3, "4.3"))
    amqp = stack.enter_context(Balancer([address_of(node.amqp_url) for node in nodes]))
    web = stack.enter_context(Balancer([address_of(node.management_url) for node in nodes]))
    return Stage(
        "cluster",
        nodes.nodes,
        nodes,
        postgres,
        disk,
        with_port(nodes[0].amqp_url, amqp.port),
        with_port(nodes[0].management_url, web.port),
    )
