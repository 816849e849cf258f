"""What can happen to the queues around tarry: deleted, declared again, full; and to a tier of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.chaos.faults.fault import CRASH, IN_FLIGHT, SLOTS, Fault
from tests.chaos.judge import Allowance
from tests.chaos.scene import Scene, wait
from tests.support.waiting import wait_for

NOT_THERE = "does not exist"
TIER = "retry.delay.1s"
OVERDUE = 5.0
"""Seconds after which all that was in it is overdue."""
AT_ONCE = ("--grace", "3s", "--offered-again", "1s")
"""For somebody who knows that the broker was not restarted and is in good health."""


@dataclass
class DestinationDeleted(Fault):
    """For good: what was to return to it is for a person to settle."""

    name = "destination-deleted"
    title = "a destination deleted for good"
    lasts = 4.0
    queue = "chaos.deleted"
    gone = 0

    def prepare(self, scene: Scene) -> None:
        scene.declare(self.queue)
        scene.extra.append(self.queue)

    def inject(self, scene: Scene) -> None:
        with scene.channel() as channel:
            self.gone += channel.queue_delete(self.queue).method.message_count or 0

    def heal(self, scene: Scene) -> None:
        """Nobody does."""

    def allowance(self) -> Allowance:
        return Allowance(reviews=NOT_THERE, review_queues=(self.queue,), gone=self.gone)


@dataclass
class DestinationRedeclared(DestinationDeleted):
    """Deleted and declared again, which loses its binding; the service must notice and bind it anew."""

    name = "destination-redeclared"
    title = "a destination deleted and declared again, five times"
    times = 5
    lasts = 0.3
    lasts_short = 0.3
    queue = "chaos.redeclared"

    def heal(self, scene: Scene) -> None:
        scene.declare(self.queue)
        wait(2.0)


@dataclass
class DestinationFull(Fault):
    """It takes ten messages, and its consumer is away; everybody else's messages must not wait for it."""

    name = "destination-full"
    title = "a destination full, its consumer away"
    lasts = 8.0
    queue = "chaos.full"

    def prepare(self, scene: Scene) -> None:
        scene.declare(self.queue, **{"x-max-length": 10, "x-overflow": "reject-publish"})
        scene.attach(self.queue)
        scene.extra.append(self.queue)

    def inject(self, scene: Scene) -> None:
        scene.stop(self.queue)

    def endure(self, scene: Scene) -> None:
        with scene.channel() as channel:
            relay = f"retry.relay.{self.queue}"
            wait_for(
                lambda: channel.queue_declare(relay, passive=True).method.message_count,
                deadline=180,
                what=f"messages in {relay}",
            )
        super().endure(scene)

    def heal(self, scene: Scene) -> None:
        scene.start_consumer(self.queue)

    def allowance(self) -> Allowance:
        return Allowance()


@dataclass
class TierDeleted(Fault):
    """With what waited in it. The topology is applied again, and the audit brings back what was lost."""

    name = "tier-deleted"
    title = "a tier deleted with all that waited in it, then `topology apply` and `audit recover`"
    lasts = 2.0
    lost = 0
    """Messages deleted with the tier, as the broker counted them."""
    recovered = 0

    def inject(self, scene: Scene) -> None:
        with scene.channel() as channel:
            wait_for(
                lambda: channel.queue_declare(TIER, passive=True).method.message_count,
                deadline=120,
                what=f"messages in {TIER}",
            )
            self.lost += channel.queue_delete(TIER).method.message_count or 0

    def heal(self, scene: Scene) -> None:
        scene.apply()
        wait(OVERDUE)
        wait_for(lambda: not self._missing(scene), deadline=180, what="nothing to be missing any more")

    def _missing(self, scene: Scene) -> list[Any]:
        """What a recovery found, and sent again."""
        answer = recover(scene)
        self.recovered += int(answer["sent"])
        found: list[Any] = answer["missing"]
        return found

    def finish(self, scene: Scene) -> None:  # noqa: ARG002  as every fault
        if not self.recovered:
            raise AssertionError("nothing was lost with the tier, so nothing is proven")

    def allowance(self) -> Allowance:
        late = max(0, self.recovered - self.lost)
        return Allowance(
            IN_FLIGHT + SLOTS + late,
            f"{CRASH}; what the tier was just letting go: 32; and what `audit recover` sent although it was only late",
        )


def recover(scene: Scene) -> dict[str, Any]:
    """The answer of `tarry audit recover`. A message that is late by more than the grace counts as missing."""
    done = scene.command("audit", "recover", "--yes", *AT_ONCE, "--json")
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer
