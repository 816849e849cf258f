"""Checks of the topology files: settings that are probably unintended, and files other than those applied. All pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tarry.core.globs import Effort
from tarry.core.policy import Policy
from tarry.topology.expected import Expected
from tarry.topology.findings import APPLY, Finding
from tarry.topology.live import Live
from tarry.topology.model import Topology
from tarry.topology.record import SHOWN, described, digest

ORDER = "policy order"
ZERO = "delay of 0"
APPLIED = "applied"
FILE_CHECKS = frozenset({ORDER, ZERO, APPLIED})
"""The names of the checks in this module."""

MOST_COMPARED = 200
"""The number of policies that are compared, each with all policies before it; later ones are not checked."""


def concerns(expected: Expected, live: Live) -> Iterator[Finding]:
    """Findings that an operator should see before these files are used on this broker."""
    yield from check_files(expected, live)
    yield from check_applied(expected, live)


def check_files(expected: Expected, _live: Live) -> Iterator[Finding]:
    yield from check_policies(expected.topology)


def check_applied(expected: Expected, live: Live) -> Iterator[Finding]:
    """Reports files that differ from the applied ones: with another folder, tiers in use would look left over."""
    topology, applied = expected.topology, live.applied(expected.names)
    if applied is None or applied.digest == digest(topology):
        return
    if topology.source is not None and topology.source.path == applied.folder:
        problem = (
            f"has changed since it was applied, {applied.when} on {applied.host} (digest {applied.digest[:SHOWN]})"
        )
        mend = APPLY
    else:
        problem = f"is not the one applied here, which is {applied}"
        mend = f"use the folder that was applied (--topology, TARRY_TOPOLOGY). To apply this one instead, run: {APPLY}"
    yield Finding(APPLIED, (f"topology {described(topology)}",), problem, mend, "note")


def check_policies(topology: Topology) -> Iterator[Finding]:
    """Policies that can never apply, and delays of 0."""
    for earlier, later in _covered(topology).items():
        yield Finding(
            ORDER,
            tuple(map(topology.policy_label, later)),
            f"can never apply: {topology.policy_label(earlier)} comes first and matches the same messages",
            "put the policy that matches less first, or remove one of the two",
            "note",
        )
    for place, policy in enumerate(topology.policies):
        if at_once := _without_delay(policy):
            yield Finding(
                ZERO,
                (topology.policy_label(place),),
                f"{_spell(at_once)} 0 ms: a message that fails again returns at once",
                "give each retry a delay",
                "note",
            )


def _covered(topology: Topology) -> dict[int, list[int]]:
    """Maps the place of a policy to the places of later policies whose messages it matches completely."""
    found: dict[int, list[int]] = {}
    effort = Effort()
    matches = [policy.match for policy in topology.policies[:MOST_COMPARED]]
    for place, match in enumerate(matches):
        earlier = next((before for before in range(place) if matches[before].covers(match, effort)), None)
        if earlier is not None:
            found.setdefault(earlier, []).append(place)
    return found


def _without_delay(policy: Policy) -> list[int]:
    """The numbers of the retries whose delay is 0, jitter included."""
    return [count + 1 for count in range(policy.ceiling) if policy.delay(count) == 0 and policy.longest_jitter(0) == 0]


def _spell(numbers: list[int]) -> str:
    """`retry 2 waits`, `retries 2 to 4 wait`, `retries 1, 3 wait`."""
    if len(numbers) == 1:
        return f"retry {numbers[0]} waits"
    in_a_row = all(one + 1 == other for one, other in pairwise(numbers))
    return f"retries {f'{numbers[0]} to {numbers[-1]}' if in_a_row else ', '.join(map(str, numbers))} wait"
