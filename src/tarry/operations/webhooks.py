"""Webhooks: what is known about them, a test delivery, and the repetition of events from the stream."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from tarry.amqp.publisher import Message, PublishOutcome
from tarry.core.json_types import DOCUMENTED
from tarry.errors import BrokerError, BrokerUnreachableError, ControlError, NotFoundError, SettingsError
from tarry.events.cloudevent import Event, source_of
from tarry.events.endpoint import DeliveryError, RefusedAddressError
from tarry.events.stream import EventFilter, StreamedEvent, read_events
from tarry.events.webhooks import TEST_WORD, WebhookError, endpoint_of, secret_of, signed
from tarry.operations.action_log import recorded
from tarry.operations.context import OperatorContext
from tarry.operations.destinations import bound_on_broker
from tarry.topology.webhooks import STATES, Webhook

MOST_UNCONFIRMED = 1_000
"""More events than this are replayed only with `everything`."""

BATCH = 200

Replayed = Callable[[int], None]
"""Called with the number of events published so far."""


@dataclass(frozen=True, slots=True)
class WebhookStatus:
    """A webhook of the topology, and how its deliveries go."""

    __pydantic_config__ = DOCUMENTED

    name: str
    url: str
    """Without credentials and query; if it comes from the environment, without its path."""
    events: list[str]
    queues: list[str]
    waiting: int | None
    """Events in its queue; null if the queue is missing."""
    retrying: int
    """Events that wait for the next attempt."""
    in_review: int
    """Events that could not be delivered."""
    last_success: datetime | None
    last_failure: datetime | None
    last_error: str | None
    disabled: datetime | None
    """Since when nothing is delivered, because the endpoint answered 410; null if it is not disabled."""


@dataclass(frozen=True, slots=True)
class WebhookTest:
    """The result of a test delivery."""

    __pydantic_config__ = DOCUMENTED

    name: str
    url: str
    delivered: bool
    status: int | None
    """The status of the answer; null if there was none."""
    error: str | None
    seconds: float
    event_id: str
    enabled: bool
    """Whether the webhook was disabled before, and is not any more."""
    action_id: str


@dataclass(frozen=True, slots=True)
class WebhookReplay:
    """The result of a replay."""

    __pydantic_config__ = DOCUMENTED

    name: str
    since: datetime
    events: int
    """Events that were put into its queue, with the ids that they had."""
    action_id: str


async def list_webhooks(context: OperatorContext) -> list[WebhookStatus]:
    webhooks = context.topology.webhooks  # read once: it can change while the service runs
    known = {row[0]: row[1:] for row in await context.store.rows("webhooks")}
    queues = [context.names.webhook_queue(one.name) for one in webhooks]
    open_ = {row[0]: row[1:] for row in await context.store.rows("webhook_retries", queues=queues)}
    found = []
    for webhook, queue in zip(webhooks, queues, strict=True):
        success, failure, error, disabled, _ = known.get(webhook.name, (None,) * 5)
        retrying, in_review = open_.get(queue, (0, 0))
        found.append(
            WebhookStatus(
                name=webhook.name,
                url=webhook.place(os.environ),
                events=list(webhook.events),
                queues=list(webhook.queues),
                waiting=await _depth(context, queue),
                retrying=retrying,
                in_review=in_review,
                last_success=success,
                last_failure=failure,
                last_error=error,
                disabled=disabled,
            )
        )
    return found


async def send_test(context: OperatorContext, name: str, *, actor: str) -> WebhookTest:
    """Sends a signed test event now. If the endpoint takes it, a disabled webhook is enabled."""
    webhook = find(context, name)
    async with recorded(context.store, kind="webhook_test", target=name, actor=actor) as action:
        try:
            endpoint = endpoint_of(webhook, os.environ, allow_private=context.limits.private_webhooks)
            secret = secret_of(webhook, os.environ)
        except WebhookError as error:
            raise SettingsError(f"{error}. A command reads them from its own environment.") from None
        event = _test_event(context, name)
        body, headers = signed(secret, event)
        status, problem, began = None, None, time.monotonic()
        try:
            status = (await endpoint.post(body, headers)).status
        except DeliveryError as error:
            status, problem = error.status, str(error)
        except RefusedAddressError as error:
            problem = str(error)
        finally:
            await endpoint.close()
        seconds = round(time.monotonic() - began, 3)
        enabled = problem is None and await context.store.change("enable_webhook", name=name) > 0
        answer = WebhookTest(
            name, webhook.place(os.environ), problem is None, status, problem, seconds, event.id, enabled, action.id
        )
        action.outcome = asdict(answer)
    return answer


async def replay(
    context: OperatorContext,
    name: str,
    *,
    since: datetime,
    actor: str,
    everything: bool = False,
    progress: Replayed = lambda _: None,
) -> WebhookReplay:
    """Puts the events since then that the webhook wants into its queue again, from the stream.

    More than MOST_UNCONFIRMED only with `everything`; without it, nothing is published then.
    """
    webhook = find(context, name)
    detail = {"since": since.isoformat(), "everything": everything}
    async with recorded(context.store, kind="webhook_replay", target=name, actor=actor, detail=detail) as action:
        await _require_queue(context, webhook)
        if not everything:
            await _refuse_many(context, webhook, since)
        published = 0
        async with aclosing(_batches(await _events(context, since), webhook)) as batches:
            async for batch in batches:
                await _publish(context, webhook, batch)
                published += len(batch)
                progress(published)
        answer = WebhookReplay(name, since, published, action.id)
        action.outcome = asdict(answer)
    return answer


def find(context: OperatorContext, name: str) -> Webhook:
    found = next((one for one in context.topology.webhooks if one.name == name), None)
    if found is None:
        names = ", ".join(one.name for one in context.topology.webhooks) or "none"
        raise NotFoundError(f"The topology has no webhook called {name!r}. It has: {names}.")
    return found


def _test_event(context: OperatorContext, name: str) -> Event:
    now = datetime.now(UTC)
    return Event(
        id=f"test-{uuid.uuid4()}",
        type=f"tarry.webhook.{TEST_WORD}",
        source=source_of(context.address.vhost, context.names.prefix),
        subject=name,
        time=now,
        sequence=f"{int(now.timestamp() * 1_000_000):019d}",
        state=TEST_WORD,
        data={"webhook": name},
    )


async def _depth(context: OperatorContext, queue: str) -> int | None:
    try:
        return await context.binder.depth(queue)
    except BrokerUnreachableError:
        raise
    except BrokerError:
        return None


async def _events(context: OperatorContext, since: datetime) -> AsyncGenerator[StreamedEvent, None]:
    return await read_events(context.address, context.names, EventFilter(since=since))


async def _require_queue(context: OperatorContext, webhook: Webhook) -> None:
    """The broker confirms an event that no queue takes: it would be unroutable, and go to review."""
    queue = context.names.webhook_queue(webhook.name)
    bound = await bound_on_broker(context)
    if await _depth(context, queue) is None or (bound is not None and queue not in bound):
        raise NotFoundError(
            f"{queue} is not there, or not bound: run `tarry topology apply`, then replay again. Nothing was replayed."
        )


async def _refuse_many(context: OperatorContext, webhook: Webhook, since: datetime) -> None:
    found = 0
    async with aclosing(_batches(await _events(context, since), webhook)) as batches:
        async for batch in batches:
            found += len(batch)
            if found > MOST_UNCONFIRMED:
                raise ControlError(
                    f"More than {MOST_UNCONFIRMED:,} events since {since:%Y-%m-%d %H:%M:%S} match webhook "
                    f"{webhook.name!r}: nothing was replayed. Give a later time, or confirm it with --yes "
                    '(in the API: "everything": true).'
                )


async def _batches(events: AsyncGenerator[StreamedEvent, None], webhook: Webhook) -> AsyncGenerator[list[Event], None]:
    """Those that the webhook wants."""
    batch: list[Event] = []
    async with aclosing(events):
        async for one in events:
            if one.event.word in STATES and webhook.wants(one.event.word, one.event.queue):
                batch.append(one.event)
            if len(batch) >= BATCH:
                yield batch
                batch = []
    if batch:
        yield batch


async def _publish(context: OperatorContext, webhook: Webhook, events: Sequence[Event]) -> None:
    """Through the exchange that returns messages to their queues: the service's user may publish to it."""
    key = webhook.destination(context.names).key
    messages = [_to(context.names.deliver, key, one) for one in events]
    outcomes = set(await context.publish(messages))
    if outcomes != {PublishOutcome.CONFIRMED}:
        queue = context.names.webhook_queue(webhook.name)
        raise BrokerUnreachableError(
            f"Not all events were confirmed by the broker: some may be in {queue} and some not. Run the replay again; "
            "an event that is delivered twice has the same id."
        )


def _to(exchange: str, key: str, event: Event) -> Message:
    made = event.message(exchange)
    return Message(exchange, key, made.properties, made.body, made.token)
