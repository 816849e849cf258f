"""Several nodes on the loopback interface that form one cluster with a shared cookie and a shared port mapper."""

from __future__ import annotations

import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tarry.embedded.epmd import Epmd
from tarry.embedded.folders import Folder
from tarry.embedded.node import Node

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tarry.embedded.installation import RabbitInstallation


class EmbeddedCluster:
    """Each node can be killed, paused and started alone; `isolate` disconnects one from the others until `heal`."""

    def __init__(
        self,
        installation: RabbitInstallation,
        *,
        size: int = 3,
        data_dir: Path | str | None = None,
        extra_config: Sequence[str] = (),
    ) -> None:
        self._folder = Folder("cluster", data_dir)
        self._epmd = Epmd(installation, self._folder.path, throwaway=self._folder.to_remove)
        self._cut: list[tuple[Node, Node]] = []
        cookie = secrets.token_hex(16)
        self.nodes = [self._node(installation, number, cookie) for number in range(1, size + 1)]
        for node in self.nodes:
            node.extra_config += [*joining(other.name for other in self.nodes), *extra_config]

    def _node(self, installation: RabbitInstallation, number: int, cookie: str) -> Node:
        folder = self._folder.path / f"node-{number}"
        folder.mkdir(exist_ok=True)
        return Node(
            installation,
            self._epmd,
            folder,
            throwaway=self._folder.throwaway,
            cookie=cookie,
            hold_open=[self._folder.lock],
        )

    def start(self) -> None:
        """Starts all nodes at once: nodes that know each other's data wait for each other."""
        self._epmd.start()
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(Node.start, self.nodes))

    def __iter__(self) -> Iterator[Node]:
        return iter(self.nodes)

    def __getitem__(self, index: int) -> Node:
        return self.nodes[index]

    def __len__(self) -> int:
        return len(self.nodes)

    def isolate(self, node: Node) -> None:
        """Disconnects the node from the other nodes, but not from clients.

        It now expects a cookie from the other nodes that they do not have.
        """
        for other in self.nodes:
            if other is not node:
                node.ctl("eval", f"erlang:set_cookie('{other.name}', cut), erlang:disconnect_node('{other.name}').")
                self._cut.append((node, other))

    def heal(self) -> None:
        for node, other in self._cut:
            peer, cookie = other.name, other.identity.cookie
            node.ctl("eval", f"erlang:set_cookie('{peer}', '{cookie}'), net_kernel:connect_node('{peer}').")
        self._cut.clear()

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        self._epmd.close()
        self._folder.close()


def joining(names: Iterator[str]) -> list[str]:
    return [
        "cluster_formation.peer_discovery_backend = classic_config",
        *(f"cluster_formation.classic_config.nodes.{number} = {name}" for number, name in enumerate(names, 1)),
    ]
