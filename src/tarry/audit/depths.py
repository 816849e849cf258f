"""Queue depths, from the management API and, where the audit depends on them, from the queue itself.

The management API returns statistics up to ten seconds old, including messages held by consumers and by the dead-letter
worker. A passive declare returns the current number of ready messages only: it replaces that part of the statistics.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from pika.exceptions import ChannelClosedByBroker

from tarry.amqp.declare import ACCESS_REFUSED, connect
from tarry.amqp.management import Json, Management
from tarry.amqp.url import Address
from tarry.core.names import Kind, Names


@dataclass(frozen=True, slots=True)
class QueueDepth:
    """The depth of one queue."""

    messages: int = 0
    ready: int = 0
    unacked: int = 0
    known: bool = True
    """False while the queue has no leader, or has reported no statistics since the broker started."""

    @property
    def moving(self) -> int:
        """Neither ready nor unacknowledged: held by the dead-letter worker until the next queue has confirmed them."""
        return max(0, self.messages - self.ready - self.unacked)

    @property
    def waiting(self) -> int:
        """Ready or unacknowledged. A message that is not due yet cannot be anywhere else."""
        return self.ready + self.unacked


@dataclass(frozen=True, slots=True)
class Depths:
    """The depths of all of tarry's queues; a queue that does not exist counts as empty."""

    names: Names
    queues: Mapping[str, QueueDepth]

    def __getitem__(self, queue: str) -> QueueDepth:
        return self.queues.get(queue, QueueDepth())

    @property
    def tiers(self) -> dict[str, QueueDepth]:
        """The queues that messages wait in."""
        return {name: depth for name, depth in self.queues.items() if self.names.is_waiting_queue(name)}

    @property
    def relays(self) -> dict[str, QueueDepth]:
        return self._of_kind("relay")

    @property
    def held(self) -> dict[str, QueueDepth]:
        """The held queues of destinations and of gates."""
        return self._of_kind("held") | self.gates

    @property
    def gates(self) -> dict[str, QueueDepth]:
        """The held queues of policies, of job types and of automatic retries."""
        return self._of_kind("gate")

    @property
    def layover(self) -> dict[str, QueueDepth]:
        """The queue between two legs."""
        return self._of_kind("layover")

    @property
    def checks(self) -> dict[str, QueueDepth]:
        """The queues where messages that are due wait until it is decided whether they return."""
        return self._of_kind("check")

    def _of_kind(self, kind: Kind) -> dict[str, QueueDepth]:
        parsed = ((name, self.names.parse(name)) for name in self.queues)
        return {name: self.queues[name] for name, found in parsed if found is not None and found.kind == kind}

    def with_ready(self, counts: Mapping[str, int]) -> Depths:
        """A copy with the ready counts that the queues themselves have just returned."""
        fresh = {
            name: replace(self[name], messages=count + self[name].unacked + self[name].moving, ready=count)
            for name, count in counts.items()
        }
        return replace(self, queues={**self.queues, **fresh})


def read_depths(management: Management, names: Names) -> Depths:
    """Read the depths of all of tarry's queues in the vhost, with one request."""
    return Depths(
        names, {about["name"]: _depth(about) for about in management.queues() if names.is_ours(about["name"])}
    )


def _depth(about: Json) -> QueueDepth:
    known = "messages" in about and about.get("state", "running") == "running"
    number = {key: int(about.get(key) or 0) for key in ("messages", "messages_ready", "messages_unacknowledged")}
    return QueueDepth(number["messages"], number["messages_ready"], number["messages_unacknowledged"], known)


def ready_counts(address: Address, queues: Collection[str]) -> dict[str, int]:
    """The current number of ready messages in each of these queues; queues that do not exist are left out."""
    return {queue: answer.messages for queue, answer in ask_queues(address, queues).items()}


@dataclass(frozen=True, slots=True)
class QueueAnswer:
    """The answer to a passive declare."""

    messages: int
    """Ready messages only."""
    consumers: int


def ask_queues(address: Address, queues: Collection[str]) -> dict[str, QueueAnswer]:
    """Declare these queues passively; queues that do not exist are left out. If access to one of them is refused (from
    RabbitMQ 4.3 on a passive declare needs a permission on the queue), the remaining queues are not asked either.
    """
    answers: dict[str, QueueAnswer] = {}
    connection = connect(address, "audit")
    try:
        for queue in queues:
            channel = connection.channel()
            try:
                found = channel.queue_declare(queue, passive=True).method
                answers[queue] = QueueAnswer(found.message_count, found.consumer_count)
                channel.close()
            except ChannelClosedByBroker as closed:
                if closed.reply_code == ACCESS_REFUSED:
                    break
    finally:
        connection.close()
    return answers
