"""A private RabbitMQ and a private PostgreSQL, for the demo, for tests and for experiments.

    with embedded.broker() as rabbit, embedded.postgres() as pg:
        print(rabbit.amqp_url, rabbit.management_url, pg.dsn())

They are always private: `RABBITMQ_URL` and `DATABASE_URL` are not read. Nothing keeps running afterwards, even if this
process is killed. Data is deleted unless `data_dir` says where to keep it.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

from tarry.embedded.brokers import Broker, EmbeddedBroker
from tarry.embedded.clusters import EmbeddedCluster
from tarry.embedded.docker import Docker
from tarry.embedded.machine import CachedRoot, DistributionPackage, InstalledSupply, OnThisMachine
from tarry.embedded.postgresql import EmbeddedPostgres
from tarry.embedded.sources import BrokerSource, Supply, choose

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tarry.embedded.sources import Announce

__all__ = [
    "Broker",
    "EmbeddedBroker",
    "EmbeddedCluster",
    "EmbeddedPostgres",
    "Supply",
    "broker",
    "cluster",
    "obtain",
    "postgres",
    "ways",
]


def print_to_stderr(message: str) -> None:
    print(message, file=sys.stderr, flush=True)  # noqa: T201  progress for a person at a terminal


def ways() -> list[BrokerSource[Supply]]:
    """Every source of a broker, in the order in which they are tried."""
    return [Docker(), *local_ways()]


def local_ways() -> list[BrokerSource[InstalledSupply]]:
    return [OnThisMachine(), DistributionPackage(), CachedRoot()]


def obtain(series: str | None = None, *, announce: Announce = print_to_stderr) -> Supply:
    """Finds RabbitMQ of that series ("3.10", "4.3") or of any. May install it; starts nothing."""
    return choose(ways(), series, announce)


@contextlib.contextmanager
def broker(
    series: str | None = None,
    data_dir: Path | str | None = None,
    extra_config: Sequence[str] = (),
    *,
    announce: Announce = print_to_stderr,
) -> Iterator[Broker]:
    """A running broker. `extra_config` are lines for rabbitmq.conf."""
    supply = obtain(series, announce=announce)
    node = supply.broker(data_dir=data_dir, extra_config=extra_config)
    with contextlib.closing(node):
        node.start()
        yield node


@contextlib.contextmanager
def cluster(
    size: int = 3,
    series: str | None = None,
    data_dir: Path | str | None = None,
    extra_config: Sequence[str] = (),
    *,
    announce: Announce = print_to_stderr,
) -> Iterator[EmbeddedCluster]:
    """Running nodes that form one cluster, always from programs on this machine."""
    installation = choose(local_ways(), series, announce).installation
    nodes = EmbeddedCluster(installation, size=size, data_dir=data_dir, extra_config=extra_config)
    with contextlib.closing(nodes):
        nodes.start()
        yield nodes


@contextlib.contextmanager
def postgres(
    data_dir: Path | str | None = None, *, durable: bool = True, settings: Sequence[str] = ()
) -> Iterator[EmbeddedPostgres]:
    """A running PostgreSQL. With `durable=False` it does not wait for the disk; `settings` are "name=value"."""
    server = EmbeddedPostgres(data_dir, durable=durable, settings=settings)
    with contextlib.closing(server):
        server.start()
        yield server
