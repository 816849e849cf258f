"""Paused destinations, policies and job types: a binding on a gate routes returns to a held queue.

While something is paused, its key is bound twice: on the gate that messages pass when they come due, and on the one
that they pass when another held queue releases them. A release removes the second binding first, since the messages
that it lets go may pass that gate themselves. The first binding stays until the held queue is empty.
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog

from tarry.amqp.management import Management
from tarry.core.names import GATE_KINDS, Destination, Gate, Holder, holder_of
from tarry.errors import BrokerError, BrokerUnreachableError, MissingOnBrokerError
from tarry.operations.context import OperatorContext
from tarry.store.database import Queries
from tarry.tasks import in_thread
from tarry.topology.blueprint import held_queue

log = structlog.get_logger()

HELD = ("holding", "canary_failed")
"""States in which nothing is released."""

RELEASE_RATE = 500
"""The default rate of a release, in messages per second."""

SEEN_WITHIN = timedelta(seconds=15)
"""How long after it has left a held queue the tap should have seen a message."""

UNKNOWN = "bound on the broker, but not recorded in the audit: resume it, or pause it again"


@dataclass(frozen=True, slots=True)
class PausedDestination:
    """One destination, policy or job type, or all automatic retries: paused or being released."""

    label: str
    kind: str
    name: str
    state: str
    state_since: datetime
    since: datetime
    bound_at: datetime | None
    rate: int | None
    canary: bool
    observe: timedelta
    stage: int
    stage_since: datetime | None
    stage_ids: list[dict[str, Any]] | None
    stage_queues: dict[str, dict[str, Any]] | None
    released: int
    problem: str | None
    held: int | None
    """Held retries, according to the audit; None if they were not counted."""
    throttle: int | None = None
    """The most returns a second. While it is set, a release keeps its binding and never ends."""
    by_breaker: bool = False
    """Whether its breaker releases it."""

    @property
    def effective_rate(self) -> int:
        """The rate of a release, which the throttle limits."""
        return min(self.rate or 1, self.throttle or self.rate or 1)

    @property
    def holder(self) -> Holder:
        return holder_of(self.kind, self.name) if self.kind in GATE_KINDS else Destination.of_label(self.label)


def command_arguments(holder: Holder) -> str:
    """What names it on the command line, for `tarry pause` and `tarry resume`."""
    if isinstance(holder, Destination):
        return shlex.quote(holder.label)
    if holder.kind == "automatic-retries":
        return f"--type {holder.kind}"
    return f"--{holder.kind} {shlex.quote(holder.name)}"


async def read_paused_destinations(context: OperatorContext) -> list[PausedDestination]:
    return [PausedDestination(*row) for row in await context.store.rows("paused_destinations", counted=False)]


async def count_paused_destinations(context: OperatorContext) -> list[PausedDestination]:
    """The same, with the number of held retries. Takes seconds if there are millions: no release may wait for it."""
    async with context.store.transaction() as page:
        await page.rows("patience_to_count")
        return [PausedDestination(*row) for row in await page.rows("paused_destinations", counted=True)]


async def begin_pause(context: OperatorContext, holder: Holder) -> None:
    """Stores the paused destination first, then binds. An error of the broker is stored as its problem, and raised."""
    await store_pause(context.store, holder)
    await assert_pause(context, holder)


async def store_pause(store: Queries, holder: Holder) -> None:
    """Its binding follows: by the caller, or by the service if the caller does not get that far."""
    await store.change("pause_destination", destination=holder.label, kind=holder.kind, name=holder.name)


async def assert_pause(context: OperatorContext, holder: Holder) -> None:
    """Creates the bindings that the broker does not have, unless the destination is no longer to be paused.

    The row is locked meanwhile: a release removes bindings under the same lock, and a process that read the row earlier
    must not create them again.
    """
    try:
        async with context.store.transaction() as page:
            row = await page.one("lock_paused", destination=holder.label)
            if row is not None and row[0] in HELD:
                await _bind(context, holder)
                await page.change("paused_bound", destination=holder.label)
    except BrokerError as error:
        await context.store.change("paused_problem", destination=holder.label, problem=str(error))
        raise


async def assert_throttle(context: OperatorContext, holder: Holder) -> bool:
    """Creates the binding of a throttled destination, unless it is paused or no longer throttled; whether it is bound.

    Messages that another held queue releases pass: they would come back to that queue while it is being released.
    """
    try:
        async with context.store.transaction() as page:
            row = await page.one("lock_paused", destination=holder.label)
            if row is None or row[0] != "releasing" or row[4] is None:
                return False
            await _bind_to(context, holder, context.names.holding_exchange(holder))
            await unbind_recheck(context, holder)
            await page.change("paused_bound", destination=holder.label)
    except BrokerError as error:
        await context.store.change("paused_problem", destination=holder.label, problem=str(error))
        raise
    return True


async def adopt_pause(context: OperatorContext, holder: Holder) -> None:
    """Stores a paused destination that is bound on the broker and missing in the store."""
    about = {"kind": holder.kind, "name": holder.name, "problem": UNKNOWN}
    await context.store.change("adopt_paused", destination=holder.label, **about)


async def undo_pause(context: OperatorContext, holder: Holder) -> None:
    """Removes a paused destination whose binding the broker refused."""
    with suppress(BrokerError):
        await unbind_recheck(context, holder)
    with suppress(BrokerError):
        await context.unbind(context.names.held_queue(holder), context.names.holding_exchange(holder), holder.key)
    await context.store.change("drop_paused", destination=holder.label)


async def unbind_recheck(context: OperatorContext, holder: Holder) -> None:
    """Lets messages pass that another held queue releases."""
    exchange = context.names.rechecking_exchange(holder)
    try:
        await context.unbind(context.names.held_queue(holder), exchange, holder.key)
    except BrokerUnreachableError:
        raise
    except BrokerError:
        if isinstance(holder, Gate):
            raise


async def is_held_on_broker(context: OperatorContext, holder: Holder) -> bool:
    """Whether its second binding exists, which only what is paused has. False if the management API gives no answer."""
    gate, queue = context.names.rechecking_exchange(holder), context.names.held_queue(holder)
    try:
        found = await in_thread(lambda: Management(context.address).bindings_from(gate), "hold")
    except BrokerError:
        return False
    return any((one["destination"], one["routing_key"]) == (queue, holder.key) for one in found)


async def _bind(context: OperatorContext, holder: Holder) -> None:
    names, queue = context.names, context.names.held_queue(holder)
    if isinstance(holder, Gate):
        await _check_gates(context)
    await _bind_to(context, holder, names.holding_exchange(holder))
    try:
        await context.bind(queue, names.rechecking_exchange(holder), holder.key)
    except BrokerUnreachableError:
        raise
    except BrokerError as error:
        # Before `tarry topology apply`, or without the new permissions, a destination can be paused as before.
        if isinstance(holder, Gate):
            raise
        log.warning(
            "pause does not apply to messages of other held queues", destination=holder.label, reason=str(error)
        )


async def _bind_to(context: OperatorContext, holder: Holder, exchange: str) -> None:
    queue = context.names.held_queue(holder)
    try:
        await context.bind(queue, exchange, holder.key)
    except MissingOnBrokerError:
        await _declare(context, holder)
        await context.bind(queue, exchange, holder.key)


async def require_gates(context: OperatorContext) -> None:
    """Raises unless all returning messages pass the gates: past them, a held message would be delivered as well."""
    try:
        ways = await _ways_from_arrival(context)
    except BrokerError as error:
        unreachable = isinstance(error, BrokerUnreachableError)
        raise (BrokerUnreachableError if unreachable else BrokerError)(
            "Nothing was paused: without the management API it is not known whether all messages pass the gates for "
            f"policies and job types. Pause again when it answers. ({error})"
        ) from error
    _refuse_former(context, ways)


async def _check_gates(context: OperatorContext) -> None:
    """The same for a pause that is stored already: if the management API fails, it goes on."""
    try:
        ways = await _ways_from_arrival(context)
    except BrokerError as error:
        log.warning("not checked whether messages pass the gates", reason=str(error))
    else:
        _refuse_former(context, ways)


async def _ways_from_arrival(context: OperatorContext) -> set[str]:
    arrive = context.names.arrive
    found = await in_thread(lambda: Management(context.address).bindings_from(arrive), "gates")
    return {one["destination"] for one in found}


def _refuse_former(context: OperatorContext, ways: set[str]) -> None:
    names = context.names
    if not ways & {names.check_gate, names.gate(GATE_KINDS[0])} or ways & {names.deliver, names.audit}:
        raise BrokerError(
            "This installation was made by an earlier version, which had no gates for policies and job types: run "
            "`tarry topology apply`, then pause again."
        )


async def _declare(context: OperatorContext, holder: Holder) -> None:
    """A destination that is not attached has no held queue yet, nor has a policy or a job type at its first pause."""
    try:
        await context.binder.declare(held_queue(context.names, holder))
    except BrokerUnreachableError:
        raise
    except BrokerError as error:
        attach = f"attach the destination with `tarry attach {holder.name}`, or " if holder.kind == "queue" else ""
        raise BrokerError(
            f"{context.names.held_queue(holder)!r} does not exist, and this user may not declare it: {attach}pause it "
            f"as the deploy user. ({error})"
        ) from error
