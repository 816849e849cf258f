"""Faults that heal by themselves, for one scene that goes on: one router lasts, the other is there to be broken."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass

from tests.chaos.faults.brokers import BrokerKilled, BrokerRestarted, DiskAlarm, MemoryAlarm
from tests.chaos.faults.fault import CRASH, IN_FLIGHT, Fault
from tests.chaos.faults.postgres import PostgresKilled, PostgresRestarted, PostgresSlow
from tests.chaos.faults.routers import BlackHole, ConnectionCut, RouterKilled, kill_at_work
from tests.chaos.judge import Allowance
from tests.chaos.scene import HEARTBEAT, Scene

WHO = 2
"""Routers: the oldest is the one whose memory is watched."""


@dataclass
class SpareKilled(RouterKilled):
    name = "spare-killed"
    title = "the newer router killed with -9 and replaced"

    def inject(self, scene: Scene) -> None:
        kill_at_work(scene.running[-1])

    def heal(self, scene: Scene) -> None:
        scene.start_router().wait_ready(60)


@dataclass
class SpareFrozen(Fault):
    name = "spare-frozen"
    title = "the newer router stopped (SIGSTOP) until the broker has given it up"
    lasts_short = 3.0 * HEARTBEAT

    def inject(self, scene: Scene) -> None:
        self._victim = scene.running[-1]
        os.kill(self._victim.process.pid, signal.SIGSTOP)

    def heal(self, scene: Scene) -> None:  # noqa: ARG002  as every fault
        os.kill(self._victim.process.pid, signal.SIGCONT)
        self._victim.wait_ready(60)

    def allowance(self) -> Allowance:
        return Allowance(IN_FLIGHT, CRASH)


@dataclass
class BothCut(ConnectionCut):
    """Two routers are in the middle of something."""

    def allowance(self) -> Allowance:
        return Allowance(WHO * IN_FLIGHT, CRASH)


@dataclass
class BothInTheDark(BlackHole):
    def allowance(self) -> Allowance:
        return Allowance(WHO * IN_FLIGHT, CRASH)


HEALING: tuple[type[Fault], ...] = (
    SpareKilled,
    SpareFrozen,
    BothCut,
    BothInTheDark,
    BrokerKilled,
    BrokerRestarted,
    MemoryAlarm,
    DiskAlarm,
    PostgresKilled,
    PostgresRestarted,
    PostgresSlow,
)


def drawn(seed: int) -> Iterator[Fault]:
    """Each once, in an order drawn from the seed, and again."""
    draw = random.Random(f"soak:{seed}")
    while True:
        for fault in draw.sample(HEALING, len(HEALING)):
            yield fault(short=True)
