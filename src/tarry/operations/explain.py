"""Explains what would become of a failed message: the policy, the delay, the tiers, or the reason for a review."""

from __future__ import annotations

import binascii
import json
import time
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pika import spec
from pika.exceptions import ChannelClosedByBroker

from tarry.amqp.connection import AmqpConnection
from tarry.amqp.declare import NOT_FOUND, refusal
from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import BadTableError, cut, table
from tarry.amqp.properties import Properties
from tarry.amqp.url import Address
from tarry.contract import headers as h
from tarry.contract.envelope import json_problem
from tarry.core.decide import Failure
from tarry.core.json_types import DOCUMENTED
from tarry.core.ladder import Itinerary, Ladder
from tarry.core.names import Names
from tarry.core.policy import Policy
from tarry.errors import MissingOnBrokerError, SettingsError
from tarry.router.explain import Explanation, explain
from tarry.topology.model import Topology
from tarry.topology.record import TopologySource

_SHORT = (
    *("content_type", "content_encoding", "correlation_id", "reply_to", "expiration"),
    *("message_id", "type", "user_id", "app_id", "cluster_id"),
)
_INTEGERS = ("delivery_mode", "priority", "timestamp")


@dataclass(frozen=True, slots=True)
class Explained:
    """What would become of one message, and why. Lists have one value, or two if jitter makes a difference."""

    __pydantic_config__ = DOCUMENTED

    outcome: str
    """`schedule` or `review`."""
    reason: str | None
    """Why it would go to review."""
    form: str | None
    """How the request was read."""
    queue: str | None
    policy: str | None
    policy_why: str
    error_class: str | None
    class_why: str
    retry_count: int | None
    max_retries: int | None
    spends_attempt: bool
    delay_ms: list[int]
    delay_why: str
    window_why: str
    """How the policy's windows moved the due time; empty if they did not."""
    itinerary: list[list[str]]
    """The queues that it would wait in."""
    due: list[str]
    returns_to: str | None
    return_priority: int | None
    """The AMQP priority that it would return with; null if it has none."""
    priority_why: str
    review_queue: str
    topology: TopologySource


@dataclass(frozen=True, slots=True)
class ScheduledRetry:
    """One retry of a schedule."""

    __pydantic_config__ = DOCUMENTED

    retry: int
    delay_ms: int
    longest_jitter_ms: int
    after_ms: int
    """Time since the first failure, without jitter."""


@dataclass(frozen=True, slots=True)
class PolicySchedule:
    """The whole schedule of a policy."""

    __pydantic_config__ = DOCUMENTED

    policy: str
    match: dict[str, str]
    max_retries: int
    max_retries_ceiling: int
    """The most retries that a request may ask for."""
    return_priority: int | None
    """The AMQP priority of a returning message; null if it keeps its own."""
    windows: list[str]
    """At which times messages may return; empty if at any time."""
    retries: list[ScheduledRetry]
    review_queue: str


@dataclass(frozen=True, slots=True)
class Explainer:
    """Explains by one topology. Needs no Postgres, and a broker only for `explain_first`."""

    topology: Topology
    address: Address

    async def explain(self, messages: Sequence[Mapping[str, Any]], *, queue: str | None = None) -> list[Explained]:
        """Messages as the management API shows them. With `queue`: what a reject in that queue would lead to.

        A message without a routing key counts as published to the request queue.
        """
        names = self.topology.broker_names
        try:
            found = [read_message({"routing_key": names.scheduled, **one}) for one in messages]
        except UNREADABLE as error:
            raise no_message("The request", error) from error
        return [self._explain(as_rejected(one, queue, names) if queue else one) for one in found]

    async def explain_first(self, queue: str) -> Explained:
        """The first message of a queue. It is taken and put back, and marked as redelivered by that.

        A message in a user's own queue is not a request yet: the question is what a reject would lead to.
        """
        found = await peek(self.address, queue)
        if found is None:
            raise SettingsError(f"The queue {queue!r} is empty: there is nothing to explain.")
        names = self.topology.broker_names
        return self._explain(found if names.is_ours(queue) else as_rejected(found, queue, names))

    async def policy_schedules(
        self,
        *,
        policy: str | None = None,
        queue: str | None = None,
        priority: str | None = None,
        job_type: str | None = None,
    ) -> list[PolicySchedule]:
        """The policy of that name, else the one that matches, else all; durations are scaled by the time scale."""
        found = _policies(self.topology, Failure(queue or "", priority=priority, job_type=job_type), policy)
        return [_schedule(one, self.topology.names.review) for one in found]

    def _explain(self, delivery: Delivery) -> Explained:
        return _explained(explain(delivery, self.topology, time.time_ns() // 1_000_000), self.topology)


def _schedule(policy: Policy, review_queue: str) -> PolicySchedule:
    return PolicySchedule(
        policy=policy.name,
        match=policy.match.model_dump(exclude_none=True),
        max_retries=policy.max_retries,
        max_retries_ceiling=policy.ceiling,
        return_priority=policy.return_priority,
        windows=[window.describe() for window in policy.windows],
        retries=list(_retries(policy)),
        review_queue=review_queue,
    )


def _policies(topology: Topology, failure: Failure, name: str | None) -> tuple[Policy, ...]:
    rules = topology.rules
    if name is not None:
        found = [policy for policy in rules.policies if policy.name == name]
        if not found:
            known = ", ".join(policy.name for policy in rules.policies)
            raise SettingsError(f"There is no policy {name!r}. Known: {known}.")
        return tuple(found)
    if not failure.queue:
        return rules.policies
    policy = rules.policy_for(failure)
    if policy is None:
        raise SettingsError(f"No policy matches queue {failure.queue!r}: its failures go to review.")
    return (policy,)


def _retries(policy: Policy) -> Iterator[ScheduledRetry]:
    after = 0
    for count in range(policy.max_retries):
        delay = policy.delay(count)
        after += delay
        yield ScheduledRetry(count + 1, delay, policy.longest_jitter(delay), after)


def _explained(found: Explanation, topology: Topology) -> Explained:
    ends = [one for one in (found.earliest, found.latest) if one is not None]
    failure, names = found.failure, topology.broker_names
    return Explained(
        outcome="review" if found.review is not None else "schedule",
        reason=found.review,
        form=found.form,
        queue=failure.queue if failure else None,
        policy=found.policy,
        policy_why=found.policy_why,
        error_class=found.error_class,
        class_why=found.class_why,
        retry_count=ends[0].retry_count if ends else None,
        max_retries=ends[0].max_retries if ends else None,
        spends_attempt=bool(ends) and failure is not None and ends[0].retry_count > failure.retry_count,
        delay_ms=[one.itinerary.delay_ms for one in ends],
        delay_why=found.delay_why,
        window_why=found.window_why,
        itinerary=[list(_queues(one.itinerary, names, topology.ladder_shape)) for one in ends],
        due=[_moment(one.due_ms) for one in ends],
        returns_to=found.returns_to,
        return_priority=found.return_priority,
        priority_why=found.priority_why,
        review_queue=topology.names.review,
        topology=TopologySource.of(topology),
    )


def _queues(way: Itinerary, names: Names, ladder: Ladder) -> Iterator[str]:
    """Every queue that a message waits in."""
    if way.tier_ms is not None:
        yield names.tier(way.tier_ms)
    top = len(way.digits) - 1
    for place, digit in enumerate(way.digits):
        if digit:
            yield names.ladder_queue(top - place, ladder.ttl(top - place, digit))


def _moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


UNREADABLE = (ValueError, TypeError, AttributeError, OverflowError, RecursionError)
"""What `read_message` raises for something that is not a message."""


def no_message(where: str, error: Exception) -> SettingsError:
    return SettingsError(
        f"{where} does not contain a message: {_problem(error)}. Paste one as the management UI shows it: "
        '{"properties": {"headers": {…}}, "payload": "…", "exchange": "", "routing_key": "orders"}.'
    )


def _problem(error: Exception) -> str:
    if isinstance(error, OSError):
        return str(error.strerror)
    odd = isinstance(error, TypeError | AttributeError | OverflowError | UnicodeEncodeError | binascii.Error)
    return "a value in it has the wrong type" if odd else json_problem(error)


def read_message(found: Mapping[str, Any]) -> Delivery:
    given = dict(found.get("properties") or {})
    fields: dict[str, Any] = {"headers": table(found.get("headers") or given.get("headers") or {})}
    fields |= {name: str(given[name]).encode() for name in _SHORT if name in given}
    fields |= {name: _whole_number(name, given[name]) for name in _INTEGERS if name in given}
    payload = found.get("payload", "")
    body = payload if isinstance(payload, str) else json.dumps(payload)
    return Delivery(
        b64decode(body, validate=True) if found.get("payload_encoding") == "base64" else body.encode(),
        Properties(**fields),
        str(found.get("exchange") or ""),
        str(found.get("routing_key") or ""),
        bool(found.get("redelivered")),
    )


def _whole_number(name: str, value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"`{name}` is not a whole number")
    return value


def as_rejected(delivery: Delivery, queue: str, names: Names) -> Delivery:
    """The message as tarry would receive it if a consumer rejected it in `queue` now."""
    exchange, key = _text(delivery.exchange), _text(delivery.routing_key)
    death = {"count": 1, "reason": "rejected", "queue": queue, "exchange": exchange, "routing-keys": [key]}
    try:
        kept = cut(delivery.properties.headers or b"", lambda name: name == h.DEATHS.encode())
    except BadTableError:
        return delivery
    properties = replace(delivery.properties, headers=kept + table({h.DEATHS: [death]}))
    return delivery._replace(properties=properties, exchange=names.intake)


def _text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode(errors="replace")


async def peek(address: Address, queue: str) -> Delivery | None:
    """The first message of a queue, which is put back; None if the queue is empty."""
    link = await AmqpConnection.open(address, "explain: peek")
    found: list[Delivery] = []
    try:

        def ask(answered: Any) -> None:
            def take(_: object, method: Any, properties: Any, body: bytes) -> None:
                found.append(Delivery(body, properties, method.exchange, method.routing_key, method.redelivered))
                link.channel.basic_nack(method.delivery_tag, requeue=True)
                answered(None)

            link.channel.add_callback(answered, [spec.Basic.GetEmpty])
            link.channel.basic_get(queue, take)

        await link.answer(ask)
    except ChannelClosedByBroker as closed:
        if closed.reply_code == NOT_FOUND:
            raise MissingOnBrokerError(f"There is no queue {queue!r} at {address}.") from closed
        raise refusal(address, closed.reply_code, closed.reply_text) from closed
    finally:
        await link.close()
    return found[0] if found else None
