"""A node's own files: its identity, its cookie, its configuration. Reusing a kept folder gives the same node."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tarry.embedded import ports

if TYPE_CHECKING:
    from collections.abc import Iterable

# The defaults of a new RabbitMQ, which also accepts them on the loopback interface only.
USER = PASSWORD = "guest"  # noqa: S105


@dataclass
class Identity:
    """What must stay the same so that the data is found again, and the ports, which stay the same if possible."""

    name: str
    cookie: str
    amqp: int
    management: int
    distribution: int

    @classmethod
    def new(cls, cookie: str | None = None) -> Self:
        return cls(f"tarry-{secrets.token_hex(4)}@localhost", cookie or secrets.token_hex(16), *ports.free(3))

    def choose_ports(self) -> None:
        self.amqp, self.management, self.distribution = ports.free(3)

    def replace_taken_ports(self) -> None:
        """Replaces only the ports that are in use."""
        self.amqp, self.management, self.distribution = ports.again([self.amqp, self.management, self.distribution])


@dataclass(frozen=True)
class Layout:
    folder: Path

    def identity(self, cookie: str | None = None) -> Identity:
        kept = self.folder / "node.json"
        return Identity(**json.loads(kept.read_text())) if kept.exists() else Identity.new(cookie)

    def write(self, identity: Identity, extra_config: Iterable[str]) -> None:
        for name in ("home", "mnesia", "log"):
            (self.folder / name).mkdir(exist_ok=True)
        self.cookie.unlink(missing_ok=True)
        self.cookie.touch(0o600)
        self.cookie.write_text(identity.cookie)
        self.cookie.chmod(0o400)
        (self.folder / "node.json").write_text(json.dumps(asdict(identity)))
        (self.folder / "enabled_plugins").write_text("[rabbitmq_management].\n")
        (self.folder / "rabbitmq.conf").write_text("\n".join([*configuration(identity), *extra_config, ""]))

    @property
    def cookie(self) -> Path:
        return self.folder / "home" / ".erlang.cookie"

    @property
    def console(self) -> Path:
        """The file with what the node prints before its own log is open, and when it crashes."""
        return self.folder / "log" / "console.log"

    def log(self, identity: Identity) -> Path:
        return self.folder / "log" / f"{identity.name}.log"

    def environment(self, identity: Identity, epmd_port: int, erlang_args: Iterable[str] = ()) -> dict[str, str]:
        loopback = "-kernel inet_dist_use_interface {127,0,0,1}"
        return {
            "PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin",
            "HOME": str(self.folder / "home"),
            "LANG": "C.UTF-8",
            "LC_ALL": "C.UTF-8",
            "ERL_EPMD_PORT": str(epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_CRASH_DUMP_SECONDS": "0",  # no dump: the log is enough
            "RUNNING_UNDER_SYSTEMD": "true",  # no shell between guardian and node, so that the known pid is the node's
            "RABBITMQ_CONF_ENV_FILE": os.devnull,
            "RABBITMQ_NODENAME": identity.name,
            "RABBITMQ_DIST_PORT": str(identity.distribution),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(self.folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "enabled_plugins"),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": " ".join([loopback, "-start_epmd false", *erlang_args]),
            "RABBITMQ_CTL_ERL_ARGS": loopback,
            # RabbitMQ's default "none" wakes a thread for each of the 100,000 file lookups during startup: twice as
            # slow.
            "RABBITMQ_SCHEDULER_BUSY_WAIT_THRESHOLD": "very_short",
        }


def configuration(identity: Identity) -> list[str]:
    return [
        f"listeners.tcp.1 = 127.0.0.1:{identity.amqp}",
        "management.tcp.ip = 127.0.0.1",
        f"management.tcp.port = {identity.management}",
        f"default_user = {USER}",
        f"default_pass = {PASSWORD}",
        "disk_free_limit.absolute = 50MB",
        "log.file.level = info",
    ]
