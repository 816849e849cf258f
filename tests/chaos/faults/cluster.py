"""What can happen to a cluster of three. Clients come in through a load balancer that knows nothing of it."""

from __future__ import annotations

from dataclasses import dataclass

from tests.chaos.faults.brokers import CRASHED, QUEUES
from tests.chaos.faults.fault import IN_FLIGHT, SLOTS, Fault
from tests.chaos.judge import Allowance
from tests.chaos.scene import Scene, wait

BOUND = IN_FLIGHT + SLOTS * QUEUES


@dataclass
class NodesKilled(Fault):
    """One, and before it is back another: two of three are gone, and with them every quorum."""

    name = "nodes-killed"
    title = "one of three nodes killed with -9, then another; both started again"
    kinds = ("cluster",)
    lasts = 6.0
    lasts_short = 1.0

    def inject(self, scene: Scene) -> None:
        scene.stage.node(0).kill()
        wait(self.duration)
        scene.stage.node(1).kill()

    def heal(self, scene: Scene) -> None:
        for index in (0, 1):
            scene.stage.node(index).start()
        scene.running[0].wait_ready(90)

    def allowance(self) -> Allowance:
        return Allowance(2 * BOUND, CRASHED)


@dataclass
class RollingRestart(Fault):
    """One node after the other, in good order, as for an upgrade."""

    name = "rolling-restart"
    title = "rolling restart of three nodes"
    kinds = ("cluster",)
    lasts = 2.0
    lasts_short = 0.0

    def inject(self, scene: Scene) -> None:
        for node in scene.stage.nodes:
            node.restart()
            wait(self.duration)

    def heal(self, scene: Scene) -> None:
        scene.running[0].wait_ready(90)

    def allowance(self) -> Allowance:
        return Allowance(3 * BOUND, CRASHED)


@dataclass
class NetworkCut(Fault):
    """One node loses the two others, and clients still reach it."""

    name = "network-cut"
    title = "one node cut off from the two others, clients still reach all"
    kinds = ("cluster",)
    lasts = 15.0
    lasts_short = 4.0

    def inject(self, scene: Scene) -> None:
        if scene.stage.cluster is None:
            raise AssertionError
        scene.stage.cluster.isolate(scene.stage.node(2))

    def heal(self, scene: Scene) -> None:
        if scene.stage.cluster is None:
            raise AssertionError
        scene.stage.cluster.heal()
        scene.running[0].wait_ready(90)

    def allowance(self) -> Allowance:
        return Allowance(BOUND, CRASHED)


@dataclass
class DestinationWithoutQuorum(Fault):
    """Its only member is on a node that dies; everybody else's messages must not wait for it."""

    name = "destination-without-quorum"
    title = "a destination without its quorum, all others well"
    kinds = ("cluster",)
    lasts = 8.0
    queue = "chaos.quorumless"

    def prepare(self, scene: Scene) -> None:
        """Declared through a connection to that very node: the first member is where the client is."""
        scene.declare_on(scene.stage.node(2), self.queue, **{"x-quorum-initial-group-size": 1})
        scene.attach(self.queue)
        scene.extra.append(self.queue)

    def inject(self, scene: Scene) -> None:
        scene.stage.node(2).kill()

    def heal(self, scene: Scene) -> None:
        scene.stage.node(2).start()
        scene.running[0].wait_ready(90)

    def allowance(self) -> Allowance:
        return Allowance(BOUND, CRASHED)
