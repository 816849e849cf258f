"""The record of the last apply, kept in the vhost itself: which topology, from where, when.

It is a binding with arguments, on an exchange of its own that no message passes. A binding can be replaced, is written
with the rights that apply has anyway, and is exported and imported with the vhost's definitions. Why it is kept this
way: docs/adr/0018-the-applied-topology-is-recorded-in-a-binding.md.
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
"""Without the `~` of the other keys: the management API cannot list a binding with both a `~` in its key and arguments,
and then lists none at all (500, RabbitMQ 3.10 and 4.3)."""

SHOWN = 12
"""Characters of a digest that people get to see."""


@dataclass(frozen=True, slots=True)
class ApplyRecord:
    """The arguments of the binding, as they are on the broker: anybody with the rights can have written them."""

    arguments: Arguments

    @classmethod
    def of(cls, topology: Topology) -> ApplyRecord:
        """A record of applying this topology, here and now."""
        source = topology.source
        about = {DIGEST: digest(topology), HOST: socket.gethostname(), AT: datetime.now(UTC).isoformat()}
        return cls(Arguments.read(about | ({FOLDER: source.path} if source is not None else {})))

    @property
    def digest(self) -> str:
        return self._text(DIGEST)

    @property
    def folder(self) -> str:
        """Empty where no files were applied."""
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
    """Equal for files that mean the same: comments, descriptions and defaults that are written out do not count."""
    content = topology.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    content["policy"] = [
        {key: of for key, of in policy.items() if key != "description"} for policy in content["policy"]
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def described(topology: Topology) -> str:
    """`/srv/topology (digest 3fa1b2c4d5e6)`."""
    source, short = topology.source, digest(topology)[:SHOWN]
    if source is None:
        return f"without files (digest {short})"
    return f"{source.path} ({'shipped with tarry, ' if source.is_shipped else ''}digest {short})"


def newest(records: Iterable[ApplyRecord]) -> ApplyRecord | None:
    """Two applies at once can leave two."""
    return max(records, key=lambda record: record.at or datetime.min.replace(tzinfo=UTC), default=None)


def write_record(
    open_channel: BlockingChannel, names: Names, record: ApplyRecord, replaced: Iterable[ApplyRecord]
) -> None:
    """First the new one, then away with those before it: a run cut off in between leaves two, and the newer counts."""
    # Not internal: RabbitMQ 4.3 exports the bindings of an internal exchange without the exchange, and such a file
    # cannot be imported.
    open_channel.exchange_declare(names.applied, "direct", durable=True)
    open_channel.exchange_bind(names.unroutable, names.applied, KEY, record.arguments.as_dict())
    for old in replaced:
        open_channel.exchange_unbind(names.unroutable, names.applied, KEY, old.arguments.as_dict())
