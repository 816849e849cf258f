"""Checks of `return_priority`: whether the origin queues honour it, and whether it makes waiting messages late."""

from __future__ import annotations

from collections.abc import Iterator

from tarry.topology.checks.parts import destinations
from tarry.topology.expected import Expected
from tarry.topology.findings import Finding
from tarry.topology.live import Live
from tarry.topology.return_priority import ALL_LEVELS_SINCE, TWO_LEVELS_SINCE, WITHOUT_ONE, return_priorities

CHECK = "return priority"


def check_return_priorities(expected: Expected, live: Live) -> Iterator[Finding]:
    """Queues that ignore the priority. Their messages return all the same, behind those that are there."""
    ignored: dict[tuple[str, str], list[str]] = {}
    for destination in destinations(expected, live):
        queue = live.queues.get(destination.name) if destination.kind == "queue" else None
        if queue is None:
            continue
        arguments = queue.arguments.as_dict()
        kind, most = str(arguments.get("x-queue-type", "classic")), arguments.get("x-max-priority")
        for effect in return_priorities(expected.topology.policies, queue.name, kind, most, live.version):
            if not effect.works:
                problem = f"return_priority {effect.priority} of policy {effect.policy!r} has no effect: {effect.text}"
                ignored.setdefault((problem, effect.mend), []).append(f"queue {queue.name}")
    for (problem, mend), queues in ignored.items():
        yield Finding(CHECK, tuple(queues), problem, mend, "note")


def check_waiting_order(expected: Expected, live: Live) -> Iterator[Finding]:
    """RabbitMQ 4.0 to 4.2 expires only the first message of a quorum queue, and orders them by priority."""
    if not TWO_LEVELS_SINCE <= live.version[:2] < ALL_LEVELS_SINCE:
        return
    topology = expected.topology
    high = tuple(
        topology.policy_label(place)
        for place, policy in enumerate(topology.policies)
        if (policy.return_priority or 0) > WITHOUT_ONE
    )
    if high:
        shown = ".".join(map(str, live.version))
        problem = (
            f"a return_priority of {WITHOUT_ONE + 1} or more makes other messages late: on RabbitMQ {shown} a waiting "
            "message with a lower priority stays in its tier until those with a higher one have left it"
        )
        yield Finding(CHECK, high, problem, "upgrade to RabbitMQ 4.3 or later, or remove return_priority", "note")
