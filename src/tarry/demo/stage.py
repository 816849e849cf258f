"""A whole installation for as long as a `with` lasts: broker, Postgres, topology and the service on top."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tarry import embedded
from tarry.audit.migrate import migrate
from tarry.broker.address import Address
from tarry.demo import kept_ports
from tarry.demo.given import GivenBroker, given_broker
from tarry.embedded import ports as free_ports
from tarry.embedded.folders import tail
from tarry.embedded.guarded import Guarded, Service
from tarry.errors import StartupError
from tarry.settings import Settings, load_settings, read_settings
from tarry.settings.sources import DEFAULT
from tarry.topology.apply import apply
from tarry.topology.model import Topology

Say = Callable[[str], None]

DATABASE = "tarry"
LOOPBACK = "127.0.0.1"
READY_WITHIN = 40.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What to set up. `data_dir=None`: all data is thrown away at the end."""

    series: str | None = None
    url: str | None = None
    """A broker that runs already, instead of a private one."""
    management_url: str | None = None
    data_dir: Path | None = None
    http_port: int | None = None
    """None: the same as last time, else 8086, else any that is free."""
    topology: Path | None = None
    """None: as the settings say."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A running installation, and where its parts are."""

    address: Address
    dsn: str
    http_url: str
    topology: Topology
    broker: str
    service: Guarded
    service_log: Path

    def check(self) -> None:
        """Raises if the service has ended."""
        if not self.service.running:
            raise StartupError(f"The service ended by itself. Its log says:\n{tail(self.service_log)}")


@contextmanager
def stage(wanted: Wanted, say: Say) -> Iterator[Stage]:
    """Set everything up, one announced step after the other; all of it ends with the block, or with this process."""
    topology = load_settings(topology=wanted.topology).read_topology()
    given = _given(wanted, topology) if wanted.url else None
    with ExitStack() as stack:
        postgres = stack.enter_context(embedded.postgres(wanted.data_dir and wanted.data_dir / "postgres"))
        postgres.ensure_database(DATABASE)
        migrate(postgres.dsn(DATABASE))
        say("Postgres is up, the audit's tables are there.")
        private = wanted.data_dir and wanted.data_dir / "rabbitmq"
        rabbit = given or stack.enter_context(embedded.broker(wanted.series, private, announce=say))
        ports = kept_ports.read(wanted.data_dir)
        settings, origins = read_settings(
            rabbitmq_url=rabbit.amqp_url,
            rabbitmq_management_url=rabbit.management_url,
            database_url=postgres.dsn(DATABASE),
            topology=wanted.topology,
            http_host=LOOPBACK,
            http_port=wanted.http_port or free_ports.again([ports.get("HTTP")])[0],
        )
        applied = apply(topology, settings.address)
        say(f"RabbitMQ {rabbit.version} is up; {applied.declared} parts of the topology declared.")
        folder = wanted.data_dir or Path(tempfile.mkdtemp(prefix="tarry-service-"))
        service = Guarded(throwaway=[] if wanted.data_dir else [folder])
        stack.callback(service.close)
        made = Stage(
            address=settings.address,
            dsn=settings.dsn,
            http_url=f"http://{LOOPBACK}:{settings.http_port}",
            topology=topology,
            broker=f"RabbitMQ {rabbit.version} ({rabbit.source})",
            service=service,
            service_log=_new_log(folder),
        )
        style = "console" if origins["log_format"] == DEFAULT else settings.log_format
        service.start(_service(settings, style, made.service_log))
        _wait_until_ready(made)
        say(f"The service is ready: {made.http_url}/readyz and /metrics.")
        for change in kept_ports.keep(wanted.data_dir, ports, _ports(made, wanted)):
            say(change)
        yield made


def _given(wanted: Wanted, topology: Topology) -> GivenBroker:
    settings = load_settings(rabbitmq_url=wanted.url, rabbitmq_management_url=wanted.management_url)
    new = wanted.data_dir is None or not (wanted.data_dir / "postgres").exists()
    return given_broker(settings.address, topology.broker_names, series=wanted.series, new_database=new)


def _ports(made: Stage, wanted: Wanted) -> dict[str, int]:
    """Those that this process chose."""
    ports = {"Postgres": urlsplit(made.dsn).port}
    if wanted.url is None:
        ports |= {"AMQP": made.address.port, "management": urlsplit(made.address.management).port}
    if wanted.http_port is None:
        ports |= {"HTTP": urlsplit(made.http_url).port}
    return {name: port for name, port in ports.items() if port is not None}


def _new_log(folder: Path) -> Path:
    """The log of the start before is kept beside it."""
    log = folder / "service.log"
    if log.exists():
        log.replace(folder / "service.log.1")
    return log


def _service(settings: Settings, log_format: str, log: Path) -> Service:
    ours = {
        "RABBITMQ_URL": settings.address.url,
        "RABBITMQ_MANAGEMENT_URL": settings.address.management_with_login,
        "DATABASE_URL": settings.dsn,
        "HTTP_HOST": settings.http_host,
        "HTTP_PORT": str(settings.http_port),
        "TARRY_TOPOLOGY": str(settings.topology_folder.absolute()),
        "TARRY_LOG": log_format,
    }
    return Service(
        argv=[sys.executable, "-m", "tarry", "serve"],
        env=dict(os.environ) | ours,
        cwd=str(Path.cwd()),
        log=str(log.absolute()),
        grace=12,
    )


def _wait_until_ready(made: Stage) -> None:
    deadline = time.monotonic() + READY_WITHIN
    while time.monotonic() < deadline:
        made.check()
        try:
            with urllib.request.urlopen(f"{made.http_url}/readyz", timeout=2) as answer:  # noqa: S310 - our own
                if json.load(answer)["status"] == "ready":
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.05)
    raise StartupError(f"The service was not ready in {READY_WITHIN:.0f} s. Its log says:\n{tail(made.service_log)}")
