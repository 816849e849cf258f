"""What can happen to a router: killed, frozen, cut off, and a clock that jumps."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.faults.fault import CRASH, IN_FLIGHT, Fault, Size
from tests.chaos.judge import Allowance
from tests.chaos.load.plan import SCHEDULE_MS
from tests.chaos.scene import HEARTBEAT, Scene, policies, wait
from tests.support.router import Router
from tests.support.waiting import wait_for

SHIFTED = Path(__file__).parent.parent / "shifted"
OTHER_SCHEDULE_MS = (1_250, 1_750, 2_500)


@dataclass
class RouterKilled(Fault):
    """Again and again, with a second one beside it, each time in the middle of its work."""

    name = "router-killed"
    title = "router killed with -9, ten times, beside another one"
    times = 10
    lasts = 0.5

    def prepare(self, scene: Scene) -> None:
        scene.first_routers = 2

    def inject(self, scene: Scene) -> None:
        kill_at_work(scene.running[0])

    def heal(self, scene: Scene) -> None:
        scene.start_router()

    def allowance(self) -> Allowance:
        return Allowance(self.repeats * IN_FLIGHT, CRASH)


def kill_at_work(victim: Router) -> None:
    before = victim.metric("retries_scheduled_total")
    wait_for(lambda: victim.metric("retries_scheduled_total") > before, deadline=180, what="the victim to be at work")
    victim.kill()


@dataclass
class OnlyRouterKilled(RouterKilled):
    """Nobody takes requests meanwhile; what waits in the tiers comes due all the same."""

    name = "only-router-killed"
    title = "the only router killed with -9, away for five seconds"
    times = 2
    lasts = 5.0

    def prepare(self, scene: Scene) -> None:
        """It stays the only one."""

    def heal(self, scene: Scene) -> None:
        scene.start_router().wait_ready()


@dataclass
class RouterFrozen(Fault):
    """The broker gives its requests to a new router; then the old one wakes and goes on as if nothing had been."""

    name = "router-frozen"
    title = "router stopped for a minute (SIGSTOP), a new one started, then both act"
    lasts = 60.0
    lasts_short = 3.0 * HEARTBEAT

    def inject(self, scene: Scene) -> None:
        self._victim = scene.running[0]
        os.kill(self._victim.process.pid, signal.SIGSTOP)
        scene.start_router().wait_ready()

    def heal(self, scene: Scene) -> None:  # noqa: ARG002  as every fault
        os.kill(self._victim.process.pid, signal.SIGCONT)
        self._victim.wait_ready()

    def allowance(self) -> Allowance:
        return Allowance(IN_FLIGHT, CRASH)


@dataclass
class ConnectionCut(Fault):
    """TCP resets between router and broker."""

    name = "connection-cut"
    title = "connections between router and broker reset, ten times"
    times = 10
    lasts = 0.2

    def prepare(self, scene: Scene) -> None:
        scene.wire("broker")

    def inject(self, scene: Scene) -> None:
        scene.wire("broker").cut()

    def heal(self, scene: Scene) -> None:
        scene.running[0].wait_ready()
        wait(1.0 if not self.short else 0.2)

    def allowance(self) -> Allowance:
        return Allowance(self.repeats * IN_FLIGHT, CRASH)


@dataclass
class BlackHole(Fault):
    """Nothing passes and nobody closes: only heartbeats can tell."""

    name = "black-hole"
    title = "nothing passes between router and broker, and nothing is closed"
    times = 2
    lasts = 4.0 * HEARTBEAT
    lasts_short = 0.0

    def prepare(self, scene: Scene) -> None:
        scene.wire("broker")

    def inject(self, scene: Scene) -> None:
        scene.wire("broker").blackhole()

    def endure(self, scene: Scene) -> None:
        wait_for(lambda: scene.running[0].ready()[0] == 503, deadline=180, what="the router to notice the silence")
        super().endure(scene)

    def heal(self, scene: Scene) -> None:
        scene.wire("broker").heal()
        scene.running[0].wait_ready()

    def allowance(self) -> Allowance:
        return Allowance(self.repeats * IN_FLIGHT, CRASH)


@dataclass
class ClockJump(Fault):
    """Only this router's clock is wrong; the broker's timers and Postgres's clock are not."""

    name = "clock-jump"
    title = "the router's clock jumps a minute ahead, and back"
    times = 2
    lasts = 6.0
    lasts_short = 2.0

    def prepare(self, scene: Scene) -> None:
        self._file = scene.folder / "clock-shift"
        self._set(0)
        path = os.pathsep.join(filter(None, (str(SHIFTED), os.environ.get("PYTHONPATH"))))
        scene.settings |= {"PYTHONPATH": path, "CHAOS_CLOCK_SHIFT": str(self._file)}

    def inject(self, scene: Scene) -> None:  # noqa: ARG002  as every fault
        self._set(60)

    def heal(self, scene: Scene) -> None:  # noqa: ARG002  as every fault
        self._set(0)

    def _set(self, seconds: int) -> None:
        self._file.write_text(str(seconds), encoding="utf-8")

    def allowance(self) -> Allowance:
        return Allowance(clock=False)


@dataclass
class TwoPolicies(Fault):
    """A rolling deploy: an old and a new router with different tiers and limits share the requests."""

    name = "two-policies"
    title = "two versions of the policies at once, during a rolling deploy"
    lasts = 8.0
    lasts_short = 3.0

    def inject(self, scene: Scene) -> None:
        folder = scene.folder / "new-topology"
        scene.apply(policies(OTHER_SCHEDULE_MS), folder)
        scene.start_router(TARRY_TOPOLOGY=str(folder)).wait_ready()

    def heal(self, scene: Scene) -> None:
        """The old one leaves in good order; what it put into its own tiers still comes due there."""
        scene.running[0].stop()

    def allowance(self) -> Allowance:
        return Allowance(schedule_ms=tuple(map(min, SCHEDULE_MS, OTHER_SCHEDULE_MS)))


@dataclass
class TapAway(Fault):
    """Copies of what returned pile up in their queue, as many as in an hour at ten a second; then a tap comes back."""

    name = "tap-away"
    title = "the tap's consumer away for an hour's worth of traffic (36,000 returns), then back"

    def size(self, usual: Size) -> Size:  # noqa: ARG002  as every fault
        return Size(26_000, 500)

    def inject(self, scene: Scene) -> None:
        for router in scene.running:
            router.stop()
        self._tapless = scene.start_router([sys.executable, "-m", "tests.chaos.tapless_router", "serve"])

    def endure(self, scene: Scene) -> None:
        wanted = 100 if self.short else 36_000
        with scene.channel() as channel:
            wait_for(
                lambda: (channel.queue_declare("retry.audit", passive=True).method.message_count or 0) >= wanted,
                deadline=300,
                what=f"{wanted} copies to wait for the tap",
            )

    def heal(self, scene: Scene) -> None:
        scene.start_router().wait_ready()
        self._tapless.stop()
