"""Whether a queue honours the AMQP priority that a policy gives to returning messages. Pure.

The rules are the broker's own (measured on 3.10.8 and 4.3.6; 4.0 to 4.2 by its documentation and source).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from tarry.core.policy import Policy

TWO_LEVELS_SINCE = (4, 0)
ALL_LEVELS_SINCE = (4, 3)
HIGHEST_OF_QUORUM = 31
WITHOUT_ONE = 4
"""The priority that a quorum queue assumes for a message without one. A classic queue assumes 0."""

USE_ANOTHER = "use a quorum queue on RabbitMQ 4.3, or a classic queue with x-max-priority"


@dataclass(frozen=True, slots=True)
class PriorityLevels:
    """The levels that a queue distinguishes."""

    highest: int
    """A higher priority counts as this one."""
    without: int
    """The priority that a message without one counts as."""
    lowest: int = 0
    """A lower priority counts as this one."""


def levels_of(queue_type: str, max_priority: Any, version: tuple[int, ...]) -> PriorityLevels | None:
    """The levels of a queue; None if it ignores priorities. `max_priority` is its argument x-max-priority."""
    if queue_type == "classic":
        return PriorityLevels(max_priority, without=0) if isinstance(max_priority, int) and max_priority > 0 else None
    if queue_type != "quorum" or version[:2] < TWO_LEVELS_SINCE:
        return None
    if version[:2] < ALL_LEVELS_SINCE:
        return PriorityLevels(WITHOUT_ONE + 1, without=WITHOUT_ONE, lowest=WITHOUT_ONE)
    return PriorityLevels(HIGHEST_OF_QUORUM, without=WITHOUT_ONE)


class PriorityEffect(NamedTuple):
    """What the return priority of one policy does in one queue."""

    policy: str
    priority: int
    works: bool
    """Whether returning messages are treated differently from messages without a priority."""
    text: str
    mend: str


def return_priorities(
    policies: Iterable[Policy], queue: str, queue_type: str, max_priority: Any, version: tuple[int, ...]
) -> Iterator[PriorityEffect]:
    """One effect for each policy that returns messages to this queue and has a `return_priority`."""
    levels = levels_of(queue_type, max_priority, version)
    shown = ".".join(map(str, version[:2]))
    for policy in policies:
        if not fnmatchcase(queue, policy.match.queue):
            continue
        if policy.return_priority is not None:
            works, text, mend = _effect(policy.return_priority, levels, queue_type, shown)
            yield PriorityEffect(policy.name, policy.return_priority, works, text, mend)
        if policy.match.priority is None and policy.match.job_type is None:
            return


def _effect(priority: int, levels: PriorityLevels | None, queue_type: str, version: str) -> tuple[bool, str, str]:
    if levels is None and queue_type == "classic":
        return False, "a classic queue without x-max-priority ignores priorities", USE_ANOTHER
    if levels is None:
        return False, f"a {queue_type} queue of RabbitMQ {version} ignores priorities", USE_ANOTHER
    level = min(max(priority, levels.lowest), levels.highest)
    if level == levels.without:
        why = f"it has the same effect as no priority, which counts as {levels.without} in this queue"
        return False, why, f"use {levels.without + 1} or more"
    order = "before" if level > levels.without else "after"
    cut = f" (it counts as {level})" if level != priority and levels.highest > levels.without + 1 else ""
    return True, f"retries are delivered {order} messages without a priority{cut}", ""
