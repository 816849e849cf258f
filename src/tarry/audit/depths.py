"""How many messages the broker has where, from the management API and, where it matters, from the queue itself.

The management API tells what a queue said last, up to ten seconds ago, with what consumers and the dead-letter worker
have of it. The queue's own answer is of this moment, and has ready messages only: it replaces that part.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from pika.exceptions import ChannelClosedByBroker

from tarry.broker.address import Address
from tarry.broker.declare import ACCESS_REFUSED, connect
from tarry.broker.management import Json, Management
from tarry.core.names import Names


@dataclass(frozen=True, slots=True)
class Depth:
    """One queue."""

    messages: int = 0
    ready: int = 0
    unacked: int = 0
    known: bool = True
    """False while the queue has no leader, or has not told its numbers since the broker started."""

    @property
    def moving(self) -> int:
        """Neither ready nor with a consumer: held by the dead-letter worker until the next queue has taken them."""
        return max(0, self.messages - self.ready - self.unacked)

    @property
    def waiting(self) -> int:
        """Ready or with a consumer: what has not come due is nowhere else."""
        return self.ready + self.unacked


@dataclass(frozen=True, slots=True)
class Depths:
    """All of tarry's queues; one that is not there holds nothing."""

    names: Names
    queues: Mapping[str, Depth]

    def __getitem__(self, queue: str) -> Depth:
        return self.queues.get(queue, Depth())

    @property
    def tiers(self) -> dict[str, Depth]:
        """The queues that messages wait in."""
        starts = (f"{self.names.delay}.", f"{self.names.prefix}ladder.")
        return {name: depth for name, depth in self.queues.items() if name.startswith(starts)}

    @property
    def relays(self) -> dict[str, Depth]:
        shared, own = self.names.relay, f"{self.names.relay}."
        return {name: depth for name, depth in self.queues.items() if name == shared or name.startswith(own)}

    @property
    def held(self) -> dict[str, Depth]:
        starts = f"{self.names.prefix}held."
        return {name: depth for name, depth in self.queues.items() if name.startswith(starts)}

    def with_ready(self, counts: Mapping[str, int]) -> Depths:
        """With what the queues said of themselves just now."""
        fresh = {
            name: replace(self[name], messages=count + self[name].unacked + self[name].moving, ready=count)
            for name, count in counts.items()
        }
        return replace(self, queues={**self.queues, **fresh})


def read_depths(management: Management, names: Names) -> Depths:
    """One request for all queues of the vhost."""
    return Depths(
        names, {about["name"]: _depth(about) for about in management.queues() if names.is_ours(about["name"])}
    )


def _depth(about: Json) -> Depth:
    told = "messages" in about and about.get("state", "running") == "running"
    number = {key: int(about.get(key) or 0) for key in ("messages", "messages_ready", "messages_unacknowledged")}
    return Depth(number["messages"], number["messages_ready"], number["messages_unacknowledged"], told)


def ready_counts(address: Address, queues: Collection[str]) -> dict[str, int]:
    """How many messages are ready in these queues right now; those that are not there are left out."""
    return {queue: answer.messages for queue, answer in ask_queues(address, queues).items()}


@dataclass(frozen=True, slots=True)
class Answer:
    """What a queue says of itself."""

    messages: int
    """Those that are ready."""
    consumers: int


def ask_queues(address: Address, queues: Collection[str]) -> dict[str, Answer]:
    """What these queues say of themselves right now; those that are not there are left out. A user who may not ask one
    of them (from RabbitMQ 4.3 on that takes a right on the queue) does not ask the others either.
    """
    answers: dict[str, Answer] = {}
    connection = connect(address, "audit")
    try:
        for queue in queues:
            channel = connection.channel()
            try:
                found = channel.queue_declare(queue, passive=True).method
                answers[queue] = Answer(found.message_count, found.consumer_count)
                channel.close()
            except ChannelClosedByBroker as closed:
                if closed.reply_code == ACCESS_REFUSED:
                    break
    finally:
        connection.close()
    return answers
