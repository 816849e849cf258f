"""Properties of a queue that prevent attaching it, or that lose messages whether it is attached or not. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tarry.attach.findings import AttachFinding, note, refusal, warning
from tarry.attach.merge import DLX, DLX_KEY, OVERFLOW, Situation
from tarry.attach.snapshot import UserQueue
from tarry.contract.checks import is_destination
from tarry.core.durations import humanise
from tarry.core.names import LONGEST_RELAYED_NAME, RESERVED, Names
from tarry.core.policy import Policy
from tarry.topology.return_priority import return_priorities

ATTACHABLE = ("classic", "quorum")
MANY_DESTINATIONS = 500
DIRECT_ROUTING_SINCE = (3, 11)


def refusals(at: Situation, names: Names, destinations: tuple[str, ...]) -> Iterator[AttachFinding]:
    queue = at.queue
    if not names.is_users(queue.name):
        yield refusal("it belongs to tarry or to the broker itself: only queues of your own can be attached")
    elif not is_destination(queue.name, destinations):
        yield refusal(
            f"it is outside the topology's `destinations` ({', '.join(destinations)}), so each reject would go to "
            "review and not be retried: add it to `destinations` in tarry.toml, then attach again"
        )
    yield from _reserved(queue)
    if queue.type not in ATTACHABLE:
        yield refusal(
            f"a {queue.type} queue has no reject and no dead-lettering: consume it into a queue of its own first"
        )
    if queue.exclusive:
        yield refusal("it is exclusive: it is deleted with its connection, and retries would be unroutable")
    elif queue.auto_delete:
        yield refusal("it is auto-delete: it is deleted with its last consumer, and retries would be unroutable")
    elif not queue.durable:
        yield refusal("it is not durable: a broker restart would delete it while its retries wait")
    if queue.argument(DLX) not in (None, at.intake):
        yield refusal(
            f"its argument x-dead-letter-exchange={queue.argument(DLX)!r} overrides any policy: declare the queue "
            f"again without it (or with {at.intake!r}), then attach again"
        )


def _reserved(queue: UserQueue) -> Iterator[AttachFinding]:
    """A request with a routing key that begins so goes to review: the key could match one of tarry's bindings."""
    if queue.name.startswith(RESERVED):
        yield refusal(
            f"its name begins with {RESERVED!r}, which is reserved for tarry's routing keys, so a reject would go to "
            "review and not be retried: use a queue with another name"
        )
    key = queue.argument(DLX_KEY)
    if isinstance(key, str) and key.startswith(RESERVED):
        yield refusal(
            f"its argument x-dead-letter-routing-key={key!r} begins with {RESERVED!r}, which is reserved for tarry's "
            "routing keys, so each reject would go to review and not be retried: declare the queue again without it"
        )


def warnings(at: Situation, failures: tuple[str, ...]) -> Iterator[AttachFinding]:
    """One warning for each setting that loses messages, or sends them where a user may not expect them."""
    queue = at.queue
    if queue.type == "classic":
        yield warning(
            "a classic queue dead-letters at most once: a reject may be lost if the broker stops just then, "
            "and it has no delivery limit; a quorum queue has neither problem"
        )
    if queue.argument(DLX_KEY) is not None:
        yield warning(
            f"its argument x-dead-letter-routing-key={queue.argument(DLX_KEY)!r} replaces the key of each reject"
        )
    yield from _overflow(at, failures)
    yield from _expiry(at, failures)
    if queue.argument("single-active-consumer"):
        yield warning("it has a single active consumer: a retried message comes back behind newer ones, out of order")


def _overflow(at: Situation, failures: tuple[str, ...]) -> Iterator[AttachFinding]:
    if not at.limited:
        return
    overflow = at.setting(OVERFLOW) or "drop-head"
    limit = ", ".join(
        f"{key} {at.setting(key)}" for key in ("max-length", "max-length-bytes") if at.setting(key) is not None
    )
    if overflow == "reject-publish":
        yield warning(
            f"it has {limit} with reject-publish: while it is full, due retries wait in its relay and are late, and "
            "publishers that do not use confirms lose messages"
        )
    else:
        fate = "are retried" if "maxlen" in failures else "go to review"
        yield warning(f"it has {limit} with {overflow}: messages that it pushes out become dead letters and {fate}")


def _expiry(at: Situation, failures: tuple[str, ...]) -> Iterator[AttachFinding]:
    ttl, expires = at.setting("message-ttl"), at.setting("expires")
    if ttl is not None:
        fate = "are retried" if "expired" in failures else "go to review"
        yield warning(f"its messages expire after {humanise(ttl)}: those that do become dead letters and {fate}")
    if expires is not None:
        yield warning(f"it is deleted after {humanise(expires)} without use: retries due later would be unroutable")


def priorities(at: Situation, policies: tuple[Policy, ...]) -> Iterator[AttachFinding]:
    """Whether the queue honours the `return_priority` of the policies that match it."""
    queue = at.queue
    for effect in return_priorities(policies, queue.name, queue.type, queue.argument("max-priority"), at.version):
        what = f"return_priority {effect.priority} of policy {effect.policy!r}"
        if effect.works:
            yield note(f"{what}: {effect.text}")
        else:
            yield warning(f"{what} has no effect: {effect.text}; {effect.mend}")


def installation(at: Situation, destinations: int) -> Iterator[AttachFinding]:
    """Limits of this broker and this installation."""
    size = len(at.queue.name.encode())
    if size > LONGEST_RELAYED_NAME:
        yield warning(
            f"its name has {size} bytes, more than {LONGEST_RELAYED_NAME}: it gets no relay of its own, "
            "so while it is full or down it delays others without one"
        )
    if at.version < DIRECT_ROUTING_SINCE and destinations >= MANY_DESTINATIONS:
        yield warning(
            f"{destinations} destinations are bound, and a broker before 3.11 routes more slowly with each: "
            "upgrade it before attaching many more"
        )
    if at.queue.argument(DLX) == at.intake:
        yield note(f"its argument x-dead-letter-exchange is {at.intake!r} already")
