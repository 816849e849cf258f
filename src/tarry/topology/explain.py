"""Differences as sentences: what is live, what is wanted, and the way from one to the other that loses nothing."""

from __future__ import annotations

from tarry.core.names import Names
from tarry.topology.left_over import tier_role
from tarry.topology.objects import Exchange, Scalar
from tarry.topology.plan import Conflict, Difference

NEW_PREFIX = (
    "messages on their way carry the digits of the old ladder, so its shape cannot change in place: choose another "
    "`names.prefix`, apply, restart the router, and remove the old installation once it is empty"
)


def explain_difference(names: Names, difference: Difference) -> str:
    """`queue retry.delay.8s: x-message-ttl is 7000, should be 8000. To migrate: …`."""
    thing = f"{difference.wanted.kind} {difference.wanted.name}"
    return f"{thing}: {explain_details(difference)}. To migrate: {way_to_migrate(names, difference)}"


def explain_details(difference: Difference) -> str:
    details = [
        f"{key} is {_spell(live)}, should be {_spell(wanted)}" for key, (live, wanted) in difference.details.items()
    ]
    holds = [f"it holds {counted(difference.messages, 'message')}"] if difference.messages else []
    return "; ".join([*details, *holds])


def way_to_migrate(names: Names, difference: Difference) -> str:
    name = difference.wanted.name
    if isinstance(difference.live, Exchange):
        return (
            "stop the router, delete the exchange in the management UI (the tiers keep what comes due meanwhile), "
            "run `tarry topology apply`, attach its destinations again (`tarry attach`), start the router"
        )
    leads_home = (difference.live.dead_letters_to or "").startswith(names.prefix)
    if tier_role(names, name) is None or not leads_home:
        return (
            "stop the router, move what it holds elsewhere (a shovel, or the management UI), delete the queue once it "
            "is empty, run `tarry topology apply`, start the router"
        )
    if "x-dead-letter-exchange" in difference.details:
        return NEW_PREFIX
    return f"`tarry topology drain {name}`, then `tarry topology apply`"


def explain_conflict(conflict: Conflict) -> str:
    wanted, live = conflict.wanted, conflict.live
    return (
        f"exchange {wanted.source}: key {wanted.key} leads to {live.destination} and should lead to "
        f"{wanted.destination}; with both, each message would be doubled. If the ladder changed: {NEW_PREFIX}. "
        "Otherwise unbind it in the management UI."
    )


def counted(number: int, thing: str) -> str:
    """`1 message`, `2 messages`."""
    return f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}s"


def _spell(value: Scalar | None) -> str:
    return "not set" if value is None else str(value)
