"""The record of the last apply, stored in the vhost itself: which topology, from where, when.

It is a binding with arguments, on a separate exchange that no message passes through. A binding can be replaced, is
written with permissions that apply needs anyway, and is exported and imported with the vhost's definitions. For the
reasons see docs/adr/0018-the-applied-topology-is-recorded-in-a-binding.md.
"""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from pika.adapters.blocking_connection import BlockingChannel

from tarry.core.names import Names
from tarry.topology.model import Topology
from tarry.topology.objects import Arguments

DIGEST = "tarry-digest"
FOLDER = "tarry-folder"
HOST = "tarry-host"
AT = "tarry-applied-at"
KEY = "applied"
"""Does not begin with `~` like the other keys: the management API fails to list a binding with both a `~` in its key
and arguments, and then lists no bindings at all (status 500, RabbitMQ 3.10 and 4.3)."""

UNCOUNTED = frozenset({"description", "extends", "without"})
"""Keys of a policy that do not change what it does."""

SHOWN = 12
"""The number of characters of a digest that are displayed."""


@dataclass(frozen=True, slots=True)
class ApplyRecord:
    """The arguments of the binding, as read from the broker. Not trusted: any user with permission can write them."""

    arguments: Arguments

    @classmethod
    def of(cls, topology: Topology) -> ApplyRecord:
        """A record for applying this topology on this host, now."""
        source = topology.source
        about = {DIGEST: digest(topology), HOST: socket.gethostname(), AT: datetime.now(UTC).isoformat()}
        return cls(Arguments.read(about | ({FOLDER: source.path} if source is not None else {})))

    @property
    def digest(self) -> str:
        return self._text(DIGEST)

    @property
    def folder(self) -> str:
        """Empty if the topology did not come from files."""
        return self._text(FOLDER)

    @property
    def host(self) -> str:
        return self._text(HOST)

    @property
    def at(self) -> datetime | None:
        try:
            return datetime.fromisoformat(self._text(AT)).astimezone(UTC)
        except (ValueError, OverflowError):
            return None

    def _text(self, name: str) -> str:
        return str(self.arguments.as_dict().get(name, ""))

    def __str__(self) -> str:
        """`/srv/topology on web-1 (digest 3fa1b2c4d5e6), applied 2030-01-31 12:00:00 UTC`."""
        folder, host = self.folder or "a topology without a folder", self.host or "an unknown host"
        return f"{folder} on {host} (digest {self.digest[:SHOWN]}), applied {self.when}"

    @property
    def when(self) -> str:
        return "at an unknown time" if self.at is None else f"{self.at:%Y-%m-%d %H:%M:%S} UTC"


def digest(topology: Topology) -> str:
    """Equal for equivalent files: comments, descriptions and explicitly written defaults do not count, and a value that
    is inherited counts like one that is written in the policy.
    """
    content = topology.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    content["policy"] = [
        {key: of for key, of in policy.items() if key not in UNCOUNTED} for policy in content["policy"]
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class TopologySource:
    """Which topology an answer is for."""

    folder: str | None
    """null if it did not come from files."""
    digest: str
    is_shipped: bool = False

    @classmethod
    def of(cls, topology: Topology) -> TopologySource:
        source = topology.source
        return cls(source.path if source else None, digest(topology), source is not None and source.is_shipped)

    def __str__(self) -> str:
        """`/srv/topology (digest 3fa1b2c4d5e6)`."""
        short = self.digest[:SHOWN]
        if self.folder is None:
            return f"without files (digest {short})"
        return f"{self.folder} ({'shipped with tarry, ' if self.is_shipped else ''}digest {short})"


def described(topology: Topology) -> str:
    return str(TopologySource.of(topology))


def newest(records: Iterable[ApplyRecord]) -> ApplyRecord | None:
    """The newest record: two concurrent applies can leave two."""
    return max(records, key=lambda record: record.at or datetime.min.replace(tzinfo=UTC), default=None)


def write_record(
    open_channel: BlockingChannel, names: Names, record: ApplyRecord, replaced: Iterable[ApplyRecord]
) -> None:
    """Writes the new record, then deletes the old ones. An interrupted run leaves two, and the newer one counts."""
    # Not internal: RabbitMQ 4.3 exports the bindings of an internal exchange without the exchange, and such a file
    # cannot be imported.
    open_channel.exchange_declare(names.applied, "direct", durable=True)
    open_channel.exchange_bind(names.unroutable, names.applied, KEY, record.arguments.as_dict())
    for old in replaced:
        open_channel.exchange_unbind(names.unroutable, names.applied, KEY, old.arguments.as_dict())
