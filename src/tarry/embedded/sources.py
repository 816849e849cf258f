"""The sources of a broker, tried in order. The first usable one is taken and announced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

from tarry.errors import EmbeddedError, NoBrokerError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tarry.embedded.brokers import Broker

Announce = Callable[[str], None]

WAYS_OUT = """Any one of these helps:
  - start Docker, and `pip install 'tarry[embedded]'`
  - install RabbitMQ: `apt-get install rabbitmq-server`, `dnf install rabbitmq-server` or `brew install rabbitmq`
  - run as root once, or allow `sudo -n`, so that tarry can install it: `tarry embedded install`
  - use a broker that runs already: `tarry up --url amqp://user:password@host:5672/vhost`"""


class Supply(Protocol):
    """A source of RabbitMQ that is ready to create any number of brokers."""

    @property
    def version(self) -> str: ...
    @property
    def source(self) -> str: ...
    def broker(self, *, data_dir: Path | str | None = None, extra_config: Sequence[str] = ()) -> Broker:
        """A broker that is not started yet."""


S_co = TypeVar("S_co", bound=Supply, covariant=True)


@dataclass(frozen=True)
class Availability:
    """What a source reports about itself, before it does anything."""

    usable: bool
    sentence: str


class BrokerSource(Protocol[S_co]):
    @property
    def name(self) -> str: ...
    def look(self, series: str | None) -> Availability: ...
    def take(self, series: str | None, announce: Announce) -> S_co: ...


def choose(sources: Iterable[BrokerSource[S_co]], series: str | None, announce: Announce) -> S_co:
    refusals = []
    for source in sources:
        finding = source.look(series)
        if not finding.usable:
            refusals.append(f"  {source.name}: {finding.sentence}")
            continue
        announce(f"RabbitMQ: {finding.sentence}")
        try:
            return source.take(series, announce)
        except EmbeddedError as problem:
            announce(f"RabbitMQ: failed ({str(problem).splitlines()[0]})")
            refusals.append(f"  {source.name}: {problem}")
    wanted = f"RabbitMQ {series}" if series else "RabbitMQ"
    raise NoBrokerError("\n".join([f"There is no way to get {wanted} here. What was tried:", *refusals, WAYS_OUT]))
