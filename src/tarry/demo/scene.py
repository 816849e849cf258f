"""What can be seen of a running installation at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from pika.adapters.blocking_connection import BlockingChannel

from tarry.audit.records import Balance
from tarry.audit.report import InReview, Report, Waiting
from tarry.demo.workload import QUEUE
from tarry.topology.model import Topology

SHOWN = 8
"""Lines of each list."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A moment: depths from the broker, the rest from the audit."""

    tiers: list[tuple[str, int]]
    ladder: int
    review: int
    waiting: list[Waiting]
    in_review: list[InReview]
    balance: Balance


def look(topology: Topology, channel: BlockingChannel, report: Report) -> Scene:
    """Now. The depth of a queue is what the broker says, not what we believe."""
    names, ladder = topology.broker_names, topology.ladder_shape
    policy = next(one for one in topology.rules.policies if one.match.fits(QUEUE, None, None))
    tiers = sorted(policy.tiers())[: max(policy.max_retries, 1)]
    steps = [names.ladder_tier(0, ladder.ttl(0, digit)) for digit in range(1, ladder.radix)]
    return Scene(
        tiers=[(names.tier(ms), _depth(channel, names.tier(ms))) for ms in tiers],
        ladder=sum(_depth(channel, step) for step in steps),
        review=_depth(channel, names.review_queue),
        waiting=report.waiting(SHOWN),
        in_review=report.in_review(SHOWN),
        balance=report.balance(),
    )


def _depth(channel: BlockingChannel, queue: str) -> int:
    return int(channel.queue_declare(queue, passive=True).method.message_count)
