"""Proves before any change that the loop works: one message passes through it on a twin of the user's queue.

The user's queue may have consumers, so a probe must never be in it; and a probe in `retry.scheduled` would be a
request. So the probe uses neither. A twin of the same type, with the arguments that affect dead-lettering, gets a copy
of the policy that the real queue is about to get, with one change: it dead-letters to an exchange of the probe's own.
The message enters through `retry.deliver`, as a retry does, is rejected, and must arrive there as a dead letter.

Everything removes itself if the process dies: the twin expires, the rest is deleted with the connection. Only the
copied policy remains, which then matches nothing; the next attach deletes it.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tarry.amqp.management import Management
from tarry.attach.merge import DLX
from tarry.attach.snapshot import UserQueue
from tarry.core.names import Destination, Names
from tarry.errors import BrokerError
from tarry.topology.apply import declare
from tarry.topology.blueprint import way_home
from tarry.topology.broker_policies import BrokerPolicy
from tarry.topology.objects import Blueprint

PREFIX = "tarry-probe."
HEADER = "tarry-probe"
TWIN_LIVES_MS = 60_000
STALE_S = 3600
DEADLINE_S = 15.0
BEARING = ("dead-letter-exchange", "dead-letter-routing-key", "dead-letter-strategy", "overflow", "delivery-limit")
"""Arguments that determine what happens to a reject."""
NOT_COPIED = frozenset({"message-ttl", "expires", "max-length", "max-length-bytes"})
"""They could remove the probe message before it is rejected, and do not affect where a reject goes."""


@dataclass(frozen=True, slots=True)
class Twin:
    """What the probe declares. Two queues with equal twins need only one proof."""

    type: str
    arguments: tuple[tuple[str, Any], ...]
    definition: str
    """As JSON: values may be lists, and twins must be hashable."""
    apply_to: str

    @classmethod
    def of(cls, queue: UserQueue, policy: BrokerPolicy) -> Twin:
        arguments = ((f"x-{key}", queue.argument(key)) for key in BEARING)
        definition = {key: value for key, value in policy.definition.items() if key not in NOT_COPIED}
        given = tuple(item for item in arguments if item[1] is not None)
        return cls(queue.type, given, json.dumps(definition, sort_keys=True), policy.apply_to)


def prove(channel: BlockingChannel, management: Management, names: Names, twin: Twin) -> None:
    """Raises BrokerError if a reject would not reach tarry, or a retry would not reach the queue."""
    token = secrets.token_hex(6)
    name = names.probe_queue(token)
    with _policy(management, name, twin), _declared(channel, token, names, twin) as spy:
        way = way_home(names, Destination("queue", name))
        declare(channel, Blueprint((), (), (way,)))
        message = pika.BasicProperties(delivery_mode=2, headers={HEADER: name})
        channel.basic_publish(names.deliver, way.key, b"probe", message)
        tag = _take(channel, name)
        if tag is None:
            raise BrokerError(
                f"The probe did not arrive through {names.deliver} to a {twin.type} queue within {DEADLINE_S:.0f} s: "
                "nothing was attached. Is the broker in an alarm, or does it have no quorum?"
            )
        channel.basic_reject(tag, requeue=False)
        if _take(channel, spy) is None:
            raise BrokerError(_why_not(management, name, twin))


def sweep(management: Management, policies: Iterable[BrokerPolicy]) -> None:
    """Deletes the copied policies of interrupted probes; a probe lasts seconds."""
    for policy in policies:
        found = re.fullmatch(rf"{re.escape(PREFIX)}(\d+)\.[0-9a-f]+", policy.name)
        if found and time.time() - int(found[1]) > STALE_S:
            management.delete_policy(policy.name)


@contextmanager
def _policy(management: Management, name: str, twin: Twin) -> Iterator[None]:
    """Sets the policy before the twin is declared, so that it applies to the twin from the start."""
    policy = f"{PREFIX}{int(time.time())}.{secrets.token_hex(4)}"
    definition = json.loads(twin.definition) | {DLX: name}
    highest = max((found["priority"] for found in management.policies()), default=0)
    pattern = f"^{re.escape(name)}$"
    try:
        management.set_policy(
            policy, pattern=pattern, definition=definition, priority=highest + 1, apply_to=twin.apply_to
        )
        yield
    finally:
        management.delete_policy(policy)


@contextmanager
def _declared(channel: BlockingChannel, token: str, names: Names, twin: Twin) -> Iterator[str]:
    """Declares the twin, and an exchange of the same name with an exclusive queue. Yields that queue's name."""
    name = names.probe_queue(token)
    own = {key: name if (key, value) == (f"x-{DLX}", names.intake) else value for key, value in twin.arguments}
    channel.exchange_declare(name, "fanout", auto_delete=True)
    spy = names.probe_result_queue(token)  # not server-named: a user restricted to tarry's prefix may declare it
    channel.queue_declare(spy, exclusive=True)
    channel.queue_bind(spy, name)
    channel.queue_declare(name, durable=True, arguments={**own, "x-queue-type": twin.type, "x-expires": TWIN_LIVES_MS})
    try:
        yield spy
    finally:
        if channel.is_open:
            channel.queue_delete(name)
            channel.queue_delete(spy)


def _take(channel: BlockingChannel, queue: str) -> int | None:
    """The delivery tag of the expected message, or None after the deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        method, _, _ = channel.basic_get(queue)
        if method is not None:
            return method.delivery_tag
        channel.connection.sleep(0.02)
    return None


def _why_not(management: Management, name: str, twin: Twin) -> str:
    applied = {about["name"]: about.get("policy") for about in management.queues()}.get(name)
    keys = ", ".join(json.loads(twin.definition))
    if not str(applied).startswith(PREFIX):
        return (
            f"The broker does not apply the policy ({keys}) to a {twin.type} queue, so a reject would not reach tarry: "
            "nothing was attached. One of the keys is unknown to this type of queue; move it to a policy of its own."
        )
    return (
        f"A reject in a {twin.type} queue with these settings was not dead-lettered within {DEADLINE_S:.0f} s "
        f"(policy: {keys}; arguments: {dict(twin.arguments)}): nothing was attached."
    )
