"""Delivers events to webhooks: reads each webhook's queue, and posts each event, signed, to its endpoint.

The queues are attached to tarry. A delivery that fails becomes a retry request with the reason, so it waits, returns
and ends in review like any other message. A message is acknowledged only when the endpoint has taken it, or the broker
has confirmed the request: a crash between the two delivers an event again, with the same id, and loses none.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any

import structlog
from pika.exceptions import ChannelClosedByBroker

from tarry import __version__
from tarry.amqp.consumer import Consumer
from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import BadTableError, cut, entry, pick
from tarry.amqp.publisher import Message, PublishOutcome
from tarry.amqp.url import Address
from tarry.client.outcomes import PROPERTIES
from tarry.contract import headers as h
from tarry.contract.outcome import report_of
from tarry.contract.safety import safe
from tarry.core.eligibility import checked_url
from tarry.core.id_prefix import as_uuid
from tarry.core.json_types import encode_base64
from tarry.core.names import Names
from tarry.core.signature import BadSecretError, Secret, is_id
from tarry.errors import AuditError, TarryError
from tarry.events.cloudevent import Event
from tarry.events.endpoint import DeliveryError, RefusedAddressError, Taken, WebhookEndpoint
from tarry.store.database import PostgresPool
from tarry.tasks import keep, sleep_unless
from tarry.topology.model import Topology
from tarry.topology.webhooks import Webhook

log = structlog.get_logger()

CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"

AT_ONCE = 16
"""Deliveries of one webhook at the same time."""

WHILE_FAILING = 50
"""Deliveries a second to an endpoint that has failed as often in a row as deliveries are in progress at the same time.
Each failure is a retry request: an endpoint that is down must not take the routers' time. Its events wait in its queue.
"""

LAST_DELIVERIES = 1.0
"""Seconds that deliveries in progress get at shutdown; then the broker keeps them."""

LOOK_EVERY = 2.0
"""Seconds between two looks whether a disabled webhook was enabled, and between two records of the last results."""

LONGEST_ERROR = 500

Publish = Callable[[Sequence[Message]], Awaitable[list[PublishOutcome]]]
OnDelivery = Callable[[str, str, float], None]
"""Called with the webhook, the outcome and the seconds."""


class DeliveryOutcome(StrEnum):
    """What became of one attempt to deliver an event."""

    DELIVERED = "delivered"
    FAILED = "failed"
    """It is retried."""
    REFUSED = "refused"
    """Its endpoint is at an address that webhooks must not reach: the event goes to review."""
    GONE = "gone"
    """The endpoint answered 410: the webhook is disabled, and its events wait."""


class WebhookError(Exception):
    """A webhook cannot be used as it is. The message says what to do."""


def endpoint_of(webhook: Webhook, environment: Mapping[str, str], *, allow_private: bool) -> WebhookEndpoint:
    """Raises WebhookError if its URL is not set or not valid."""
    url = webhook.url or environment.get(webhook.url_env or "", "").strip()
    if not url:
        raise WebhookError(f"webhook {webhook.name}: set {webhook.url_env} to its URL, and restart the service")
    try:
        checked_url(url)
    except ValueError as error:
        raise WebhookError(f"webhook {webhook.name}: {webhook.url_env} is not a URL: {error}") from None
    private = allow_private or webhook.allow_private
    return WebhookEndpoint(url, webhook.timeout / 1_000, private, hides_path=webhook.url is None)


def secret_of(webhook: Webhook, environment: Mapping[str, str]) -> Secret:
    """Raises WebhookError if its secret is not set or cannot be used."""
    try:
        return Secret.parse(environment.get(webhook.secret_env, ""))
    except BadSecretError as error:
        raise WebhookError(
            f"webhook {webhook.name}: the secret in {webhook.secret_env} cannot be used: {error}"
        ) from None


def signed(secret: Secret, event: Event, payload: bytes | None = None) -> tuple[bytes, dict[str, str]]:
    """Body and headers of the request about an event."""
    about = event.as_json()
    if payload is not None:
        about["data"] = {**about["data"], "payload_base64": encode_base64(payload)}
    body = json.dumps(about, separators=(",", ":")).encode()  # in ASCII: a lone surrogate has no other encoding
    headers = {"content-type": CONTENT_TYPE, "user-agent": f"tarry/{__version__}"}
    return body, headers | secret.sign(event.id, int(time.time()), body)


@dataclass(slots=True)
class LastResults:
    """The latest results of one webhook, to be written to the store now and then."""

    success_at: datetime | None = None
    failure_at: datetime | None = None
    error: str | None = None

    def take(self) -> dict[str, Any] | None:
        """Those since the last call; None if there are none."""
        found = {"success_at": self.success_at, "failure_at": self.failure_at, "error": self.error}
        self.success_at = self.failure_at = self.error = None
        return found if found["success_at"] or found["failure_at"] else None


@dataclass(slots=True)
class Deliverer:
    """Delivers the events of one webhook."""

    webhook: Webhook
    endpoint: WebhookEndpoint
    secret: Secret
    address: Address
    names: Names
    publish: Publish
    store: PostgresPool
    on_delivery: OnDelivery
    results: LastResults = field(default_factory=LastResults)
    complaint: str | None = None
    """Why the last delivery failed; None if it succeeded."""
    disabled: str | None = None
    """Why nothing is delivered."""
    _next_turn: float = 0.0
    _failures: int = 0
    """Since the last success."""
    _under_way: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def queue(self) -> str:
        return self.names.webhook_queue(self.webhook.name)

    async def run(self, stop: asyncio.Event) -> str:
        """Runs one connection until it ends; returns the reason. While the webhook is disabled, none is open."""
        while not stop.is_set():
            if await self._is_disabled():
                await sleep_unless(stop, LOOK_EVERY)
                continue
            ended = await self._consume(stop)
            if self.disabled is None:
                return ended
        return "asked to end"

    async def _consume(self, stop: asyncio.Event) -> str:
        consumer = await self._open()
        ending = asyncio.create_task(_finish_on(stop, consumer))
        try:
            async for batch in consumer.batches():
                for delivery in batch:
                    await self._turn(consumer)
                    if not consumer.finishing.is_set():  # otherwise the broker keeps it
                        self._begin(consumer, delivery)
        finally:
            ending.cancel()
            await self._finish()
            await consumer.link.close()
        return consumer.link.closed.result()

    async def record(self) -> None:
        """Writes the latest results to the store."""
        found = self.results.take()
        if found is not None:
            await self.store.change("webhook_result", name=self.webhook.name, **found)

    async def close(self) -> None:
        await self.endpoint.close()
        with suppress(AuditError):
            await self.record()

    async def _open(self) -> Consumer:
        purpose = f"webhook {self.webhook.name}"
        try:
            return await Consumer.open(self.address, self.queue, purpose, batch=AT_ONCE, prefetch=AT_ONCE, linger=0)
        except ChannelClosedByBroker as error:
            log.warning(
                "the queue of a webhook cannot be read",
                queue=self.queue,
                reason=error.reply_text,
                do="run `tarry topology apply`, and let the router's user read it",
            )
            raise

    async def _is_disabled(self) -> bool:
        """According to the store, as long as it answers."""
        try:
            row = await self.store.one("webhook_disabled", name=self.webhook.name)
        except AuditError:
            return self.disabled is not None
        was, self.disabled = self.disabled, row[0] if row else None
        if was is not None and self.disabled is None:
            log.info("webhook enabled", webhook=self.webhook.name)
        return self.disabled is not None

    @property
    def _rate(self) -> int | None:
        if self._failures < AT_ONCE:
            return self.webhook.rate
        return min(self.webhook.rate or WHILE_FAILING, WHILE_FAILING)

    async def _turn(self, consumer: Consumer) -> None:
        """Waits as long as the rate demands."""
        rate = self._rate
        if rate is None or consumer.finishing.is_set():
            return
        now = time.monotonic()
        wait = self._next_turn - now
        self._next_turn = max(self._next_turn, now) + 1 / rate
        if wait > 0:
            await asyncio.sleep(wait)

    def _begin(self, consumer: Consumer, delivery: Delivery) -> None:
        task = asyncio.create_task(self._handle(consumer, delivery))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _finish(self) -> None:
        if self._under_way:
            _, late = await asyncio.wait(self._under_way, timeout=LAST_DELIVERIES)
            for task in late:
                task.cancel()

    async def _handle(self, consumer: Consumer, delivery: Delivery) -> None:
        """An error that is not expected leaves the message to the broker: the connection ends, and it comes again."""
        try:
            await self._deliver(consumer, delivery)
        except TarryError as error:
            consumer.link.end(str(error))
        except Exception:
            log.exception("webhook delivery failed unexpectedly", webhook=self.webhook.name)
            consumer.link.end(INTERNAL)

    async def _deliver(self, consumer: Consumer, delivery: Delivery) -> None:
        event = Event.read(delivery.properties, delivery.body)
        if event is None or not _can_be_header(event.id):
            await self._fail(consumer, delivery, "webhook.no_event", "it is not an event", {h.ERROR_CLASS: "final"})
            return
        if not self._wants(event):
            consumer.ack([delivery.tag])
            return
        started = time.monotonic()
        try:
            taken = await self._post(event)
        except RefusedAddressError as error:
            self._note(DeliveryOutcome.REFUSED, started, str(error))
            await self._fail(consumer, delivery, "webhook.refused", str(error), {h.ERROR_CLASS: "final"})
        except DeliveryError as error:
            if error.kind == "gone":
                await self._disable(consumer, delivery, started, str(error))
                return
            self._note(DeliveryOutcome.FAILED, started, str(error))
            await self._fail(consumer, delivery, f"webhook.{error.kind}", str(error), _hint(error))
        except TarryError:
            raise
        except Exception:
            log.exception("webhook delivery failed unexpectedly", webhook=self.webhook.name)
            self._note(DeliveryOutcome.FAILED, started, INTERNAL)
            await self._fail(consumer, delivery, "webhook.internal", INTERNAL, {})
        else:
            self._note(DeliveryOutcome.DELIVERED, started, cut=taken.cut)
            consumer.ack([delivery.tag])
            await self._report(delivery, time.monotonic() - started)

    def _wants(self, event: Event) -> bool:
        return event.word == TEST_WORD or self.webhook.wants(event.word, event.queue)

    async def _post(self, event: Event) -> Taken:
        payload = await payload_of(self.store, event) if self.webhook.payload else None
        body, headers = signed(self.secret, event, payload)
        return await self.endpoint.post(body, headers)

    def _note(self, outcome: DeliveryOutcome, started: float, error: str | None = None, *, cut: bool = False) -> None:
        """Counts, remembers and logs it. A reason is logged when it is new."""
        self.on_delivery(self.webhook.name, outcome.value, time.monotonic() - started)
        self._failures = 0 if error is None else self._failures + 1
        if error is None:
            self.results.success_at = datetime.now(UTC)
            if self.complaint is not None:
                log.info("webhook delivers again", webhook=self.webhook.name)
            if cut:
                log.debug("answer of a webhook cut", webhook=self.webhook.name)
        else:
            self.results.failure_at, self.results.error = datetime.now(UTC), error[:LONGEST_ERROR]
            if error != self.complaint:
                log.warning("webhook not delivered", webhook=self.webhook.name, outcome=outcome.value, error=error)
        self.complaint = error

    async def _fail(
        self, consumer: Consumer, delivery: Delivery, kind: str, reason: str, more: Mapping[str, str | int]
    ) -> None:
        """Requests a retry, or with the class `final` review, and acknowledges the message once that is confirmed."""
        request = retry_request(self.names, self.queue, delivery, {h.ERROR_TYPE: kind, h.ERROR_REASON: reason, **more})
        outcome = (await self.publish([request]))[0]
        if outcome is PublishOutcome.CONFIRMED:
            consumer.ack([delivery.tag])
        elif outcome is PublishOutcome.UNKNOWN:
            consumer.link.end("a retry request was not confirmed")
        else:
            consumer.reject([delivery.tag])  # its queue dead-letters it to tarry, without the reason

    async def _disable(self, consumer: Consumer, delivery: Delivery, started: float, reason: str) -> None:
        self._note(DeliveryOutcome.GONE, started, reason)
        self.disabled = reason
        log.warning(
            "webhook disabled: its events wait in its queue",
            webhook=self.webhook.name,
            reason=reason,
            do=f"`tarry webhooks test {self.webhook.name}` enables it if the endpoint answers",
        )
        with suppress(AuditError):
            await self.store.change("disable_webhook", name=self.webhook.name, reason=reason)
        consumer.requeue([delivery.tag])
        consumer.finish()

    async def _report(self, delivery: Delivery, seconds: float) -> None:
        """Reports the success of a delivery that was retried; if that fails, the audit presumes it."""
        retry_id, round_, count = _own(delivery)
        report = report_of([(retry_id, round_, count, time.time_ns(), seconds)]) if retry_id else None
        if report is not None:
            with suppress(TarryError):
                await self.publish([Message(self.names.reports, "", PROPERTIES, report, "")])


def _own(delivery: Delivery) -> tuple[str | None, int | None, int | None]:
    """Retry id, round and count, if tarry has returned the message."""
    try:
        found = pick(delivery.properties.headers or b"", {_ID, _ROUND, _COUNT})
    except BadTableError:
        return None, None, None
    retry_id = found[_ID].text() if _ID in found else None
    round_, count = (found[name].integer() if name in found else None for name in (_ROUND, _COUNT))
    return retry_id, round_, count


_ID, _ROUND, _COUNT = h.ID.encode(), h.ROUND.encode(), h.COUNT.encode()

INTERNAL = "an error inside tarry"


def _can_be_header(id_: str) -> bool:
    return id_.isascii() and is_id(id_)


TEST_WORD = "test"
"""The short type of the event of `tarry webhooks test`."""


async def payload_of(store: PostgresPool, event: Event) -> bytes | None:
    """The stored body of the message that an event is about; None if there is none. Raises AuditError."""
    retry_id = as_uuid(str(event.data.get("retry_id")))
    row = await store.one("retry_payload", id=retry_id) if retry_id is not None else None
    return bytes(row[0]) if row and row[0] is not None else None


def retry_request(names: Names, queue: str, delivery: Delivery, about: Mapping[str, str | int]) -> Message:
    """The request to retry a delivery: the message with all its headers, and those that describe the failure."""
    try:
        kept = cut(delivery.properties.headers or b"", lambda name: name in _STALE)
    except BadTableError:
        kept = b""
    own = {h.ORIGINAL_QUEUE: queue, h.ORIGINAL_EXCHANGE: "", h.ORIGINAL_KEY: queue, **about}
    headers = kept + b"".join(entry(name, value) for name, value in own.items())
    retry_id, round_, _ = _own(delivery)
    token = f"{retry_id}:{round_}" if retry_id else ""
    return Message(names.intake, queue, safe(delivery.properties, headers), delivery.body, token)


_STALE = frozenset(
    name.encode()
    for name in h.OF_THIS_FAILURE | h.BROKERS_OWN | {h.ORIGINAL_QUEUE, h.ORIGINAL_EXCHANGE, h.ORIGINAL_KEY}
)


def _hint(error: DeliveryError) -> dict[str, str | int]:
    if error.retry_after_ms is None:
        return {}
    return {h.ERROR_CLASS: "rate_limited", h.RETRY_AFTER: error.retry_after_ms}


async def _finish_on(stop: asyncio.Event, consumer: Consumer) -> None:
    await stop.wait()
    consumer.finish()


@dataclass(slots=True)
class WebhookDeliveries:
    """Runs a deliverer for each webhook of the topology in use."""

    topology: Topology
    address: Address
    publish: Publish
    store: PostgresPool
    allow_private: bool = False
    on_delivery: OnDelivery = lambda *_: None
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)
    _running: dict[Webhook, tuple[asyncio.Task[None], asyncio.Event, Deliverer]] = field(default_factory=dict)
    _unusable: dict[Webhook, str] = field(default_factory=dict)

    def use(self, topology: Topology) -> None:
        """Uses these webhooks from now on."""
        self.topology = topology

    @property
    def troubles(self) -> list[str]:
        """Webhooks that do not deliver, for health checks."""
        found = [f"{problem}: its events wait" for problem in self._unusable.values()]
        for webhook, (_, _, deliverer) in self._running.items():
            if deliverer.disabled is not None:
                found.append(f"webhook {webhook.name} is disabled ({deliverer.disabled}): its events wait")
        return found

    async def run(self, stop: asyncio.Event) -> None:
        """Runs until `stop` is set."""
        try:
            while not stop.is_set():
                await self._reconcile()
                for _, _, deliverer in list(self._running.values()):
                    with suppress(AuditError):
                        await deliverer.record()
                await sleep_unless(stop, LOOK_EVERY)
        finally:
            await asyncio.gather(*map(self._end, list(self._running)))

    async def _reconcile(self) -> None:
        """Ends what is not wanted any more or has ended, and starts what is missing."""
        wanted = set(self.topology.webhooks)
        for webhook, (task, _, _) in list(self._running.items()):
            if webhook not in wanted or task.done():
                await self._end(webhook)
        self._unusable = {webhook: why for webhook, why in self._unusable.items() if webhook in wanted}
        for webhook in wanted - self._running.keys() - self._unusable.keys():
            self._start(webhook)

    def _start(self, webhook: Webhook) -> None:
        try:
            endpoint = endpoint_of(webhook, self.environment, allow_private=self.allow_private)
            secret = secret_of(webhook, self.environment)
        except WebhookError as error:
            self._unusable[webhook] = str(error)
            problem = str(error)
            log.error("webhook cannot be used", webhook=webhook.name, problem=problem)  # noqa: TRY400 - it says all
            return
        names = self.topology.broker_names
        deliverer = Deliverer(
            webhook, endpoint, secret, self.address, names, self.publish, self.store, self.on_delivery
        )
        ending = asyncio.Event()
        run = keep(f"webhook {webhook.name}", partial(deliverer.run, ending), ending, lambda _: None)
        self._running[webhook] = asyncio.create_task(run), ending, deliverer

    async def _end(self, webhook: Webhook) -> None:
        task, ending, deliverer = self._running.pop(webhook)
        ending.set()
        (problem,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(problem, Exception):
            log.warning("webhook stopped, starting again", webhook=webhook.name, reason=str(problem))
        await deliverer.close()
