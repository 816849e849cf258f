"""What can happen to a broker of one node: killed, restarted, and its alarms."""

from __future__ import annotations

from dataclasses import dataclass

from tests.chaos.faults.fault import CRASH, IN_FLIGHT, SLOTS, Fault
from tests.chaos.judge import Allowance
from tests.chaos.scene import Scene
from tests.support.waiting import wait_for

CRASHED = f"{CRASH}; and what the broker was moving between two queues: 32 for each of 40"
QUEUES = 40


@dataclass
class BrokerKilled(Fault):
    """What it had confirmed is on its disk."""

    name = "broker-killed"
    title = "broker killed with -9 and started again"
    times = 2
    lasts = 3.0
    lasts_short = 0.5

    def inject(self, scene: Scene) -> None:
        scene.stage.nodes[0].kill()

    def heal(self, scene: Scene) -> None:
        scene.stage.nodes[0].start()
        scene.running[0].wait_ready(90)

    def allowance(self) -> Allowance:
        return Allowance(self.repeats * (IN_FLIGHT + SLOTS * QUEUES), CRASHED)


@dataclass
class BrokerRestarted(BrokerKilled):
    """In good order, as for an upgrade."""

    name = "broker-restarted"
    title = "broker stopped and started again"
    times = 1

    def inject(self, scene: Scene) -> None:
        scene.stage.nodes[0].stop()


@dataclass
class MemoryAlarm(Fault):
    """The broker reads from no publisher any more."""

    name = "memory-alarm"
    title = "memory alarm on the broker"
    lasts = 8.0
    lasts_short = 2.0

    def inject(self, scene: Scene) -> None:
        scene.stage.ctl("set_vm_memory_high_watermark", "0.00001")

    def endure(self, scene: Scene) -> None:
        wait_for(lambda: scene.running[0].ready()[0] == 503, deadline=180, what="the router to be blocked")
        super().endure(scene)

    def heal(self, scene: Scene) -> None:
        scene.stage.ctl("set_vm_memory_high_watermark", "0.6")
        scene.running[0].wait_ready()


@dataclass
class DiskAlarm(Fault):
    """The same, for want of disk."""

    name = "disk-alarm"
    title = "disk alarm on the broker"
    lasts = 8.0
    lasts_short = 2.0

    def inject(self, scene: Scene) -> None:
        scene.stage.ctl("set_disk_free_limit", "100000GB")

    def endure(self, scene: Scene) -> None:
        wait_for(lambda: scene.running[0].ready()[0] == 503, deadline=180, what="the router to be blocked")
        super().endure(scene)

    def heal(self, scene: Scene) -> None:
        scene.stage.ctl("set_disk_free_limit", "50MB")
        scene.running[0].wait_ready()
