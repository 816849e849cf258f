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

from tarry import embedded
from tarry.audit.migrate import migrate
from tarry.broker.address import Address
from tarry.embedded import ports
from tarry.embedded.folders import tail
from tarry.embedded.guarded import Guarded, Service
from tarry.errors import StartupError
from tarry.settings import Settings, load_settings
from tarry.topology.apply import apply
from tarry.topology.model import Topology

Say = Callable[[str], None]

DATABASE = "tarry"
READY_WITHIN = 40.0


@dataclass(frozen=True, slots=True)
class Stage:
    """A running installation, and where its parts are."""

    address: Address
    management_url: str
    dsn: str
    http_url: str
    topology: Topology
    broker: str
    settings: Settings
    service: Guarded
    service_log: Path

    def check(self) -> None:
        """Raises if the service has ended."""
        if not self.service.running:
            raise StartupError(f"The service ended by itself. Its log says:\n{tail(self.service_log)}")


@contextmanager
def stage(*, series: str | None, data_dir: Path | None, http_port: int | None, say: Say) -> Iterator[Stage]:
    """Set everything up, one announced step after the other; all of it ends with the block, or with this process."""
    with ExitStack() as stack:
        postgres = stack.enter_context(embedded.postgres(data_dir and data_dir / "postgres"))
        postgres.ensure_database(DATABASE)
        migrate(postgres.dsn(DATABASE))
        say("Postgres is up, the audit's tables are there.")
        rabbit = stack.enter_context(embedded.broker(series, data_dir and data_dir / "rabbitmq", announce=say))
        settings = _settings(rabbit.amqp_url, rabbit.management_url, postgres.dsn(DATABASE), http_port)
        topology = settings.read_topology()
        applied = apply(topology, settings.address)
        say(f"RabbitMQ {rabbit.version} is up; {applied.declared} parts of the topology declared.")
        folder = Path(tempfile.mkdtemp(prefix="tarry-service-"))
        service = Guarded(throwaway=[folder])
        stack.callback(service.close)
        log = folder / "service.log"
        made = Stage(
            address=settings.address,
            management_url=rabbit.management_url,
            dsn=postgres.dsn(DATABASE),
            http_url=f"http://127.0.0.1:{settings.http_port}",
            topology=topology,
            broker=f"RabbitMQ {rabbit.version} ({rabbit.source})",
            settings=settings,
            service=service,
            service_log=log,
        )
        service.start(_service(settings, log))
        _wait_until_ready(made)
        say(f"The service is ready: {made.http_url}/readyz and /metrics.")
        yield made


def _settings(amqp_url: str, management_url: str, dsn: str, http_port: int | None) -> Settings:
    return load_settings(
        rabbitmq_url=amqp_url,
        rabbitmq_management_url=management_url,
        database_url=dsn,
        http_port=http_port or ports.free(1)[0],
    )


def _service(settings: Settings, log: Path) -> Service:
    ours = {
        "RABBITMQ_URL": settings.rabbitmq_url.get_secret_value(),
        "RABBITMQ_MANAGEMENT_URL": settings.address.management_with_login,
        "DATABASE_URL": settings.dsn,
        "HTTP_PORT": str(settings.http_port),
        "TARRY_TOPOLOGY": str(settings.topology_folder.absolute()),
    }
    return Service(
        argv=[sys.executable, "-m", "tarry", "serve"],
        env=dict(os.environ) | ours,
        cwd=str(Path.cwd()),
        log=str(log),
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
