"""Sets up a running installation for the demo and `tarry up`: Postgres, a broker, the topology and the service.

The broker is private, or one that is already running, if the user asks for that. A given broker must not be in use by
another router.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from tarry import embedded
from tarry.amqp.management import Management
from tarry.amqp.url import Address
from tarry.audit.depths import ask_queues, read_depths
from tarry.core.names import Names
from tarry.embedded import ports as free_ports
from tarry.embedded.folders import tail
from tarry.embedded.guarded import Guarded, GuardedProgram
from tarry.embedded.installation import in_series
from tarry.errors import ConflictError, SettingsError, StartupError
from tarry.settings import Settings, load_settings, read_settings
from tarry.settings.sources import DEFAULT
from tarry.store.database import migrate
from tarry.topology.apply import apply
from tarry.topology.model import Topology

SHOWN = 3


@dataclass(frozen=True, slots=True)
class GivenBroker:
    """The address and version of a broker that is already running."""

    amqp_url: str
    management_url: str
    version: str
    source: str


def given_broker(address: Address, names: Names, *, series: str | None, new_database: bool) -> GivenBroker:
    """The broker at this address. Raises if it is of another series, or if tarry already uses it."""
    version = str(Management(address).overview()["rabbitmq_version"])
    if not in_series(version, series):
        raise SettingsError(f"{address} is RabbitMQ {version}, not {series}: leave out --series, or --url.")
    _refuse_in_use(address, names, new_database=new_database)
    return GivenBroker(address.url, address.management_with_login, version, str(address))


def _refuse_in_use(address: Address, names: Names, *, new_database: bool) -> None:
    """Raises if a router consumes from tarry's queues, or if they have messages and the database is new.

    A router consumes from several queues, even while its intake is paused. The review queue is not checked:
    operators use it.
    """
    own = [queue for queue in read_depths(Management(address), names).queues if names.has_prefix(queue)]
    answers = ask_queues(address, {*own, names.scheduled} - {names.review_queue})
    if consumed := [queue for queue, answer in answers.items() if answer.consumers]:
        raise ConflictError(
            f"Another router consumes from {_some(consumed)} at {address}. Two routers with different databases must "
            "not share queues: stop that router, use another vhost, or leave out --url for a private broker."
        )
    if new_database and (filled := [queue for queue, answer in answers.items() if answer.messages]):
        raise ConflictError(
            f"Messages wait in {_some(filled)} at {address}, and the database here is new: their history would be "
            "recorded in the wrong place. Use another vhost, or leave out --url for a private broker."
        )


def _some(queues: list[str]) -> str:
    more = len(queues) - SHOWN
    return ", ".join(sorted(queues)[:SHOWN]) + (f" and {more} more" if more > 0 else "")


FILE = "ports.json"
FIRST = {"HTTP": 8086}
"""The port to try at the first start."""


def read(folder: Path | None) -> dict[str, int]:
    """The ports of the last start, by name. A file that cannot be read counts as missing."""
    if folder is None:
        return {}
    try:
        kept = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        kept = {}
    found = kept if isinstance(kept, dict) else {}
    return FIRST | {name: port for name, port in found.items() if isinstance(port, int)}


def keep(folder: Path | None, before: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """Saves the ports for the next start; returns a line for each port that has changed."""
    if folder is None:
        return []
    (folder / FILE).write_text(json.dumps({**before, **now}))
    return [
        f"The {name} port was {before[name]}, which is in use; it is {port} now."
        for name, port in now.items()
        if before.get(name, port) != port
    ]


Say = Callable[[str], None]

DATABASE = "tarry"
LOOPBACK = "127.0.0.1"
READY_WITHIN = 90.0
PORTS_TRIED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StageOptions:
    """What to set up. With `data_dir=None` all data is deleted at the end."""

    series: str | None = None
    url: str | None = None
    """The URL of a broker that is already running, to use instead of a private one."""
    management_url: str | None = None
    data_dir: Path | None = None
    http_port: int | None = None
    """None: the port of the last start, otherwise 8086, otherwise any free port."""
    topology: Path | None = None
    """None: the folder from the settings."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A running installation, with the addresses of its parts."""

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
            raise ended(self.service_log)


@contextmanager
def stage(wanted: StageOptions, say: Say) -> Iterator[Stage]:
    """Sets everything up and announces each step; everything ends with the block, or with this process."""
    topology = load_settings(topology=wanted.topology).read_topology()
    given = _given(wanted, topology) if wanted.url else None
    with ExitStack() as stack:
        postgres = stack.enter_context(embedded.postgres(wanted.data_dir and wanted.data_dir / "postgres"))
        postgres.ensure_database(DATABASE)
        asyncio.run(migrate(postgres.dsn(DATABASE)))
        say("Postgres is up, and the audit's tables exist.")
        private = wanted.data_dir and wanted.data_dir / "rabbitmq"
        rabbit = given or stack.enter_context(embedded.broker(wanted.series, private, announce=say))
        ports = read(wanted.data_dir)
        settings, origins = read_settings(
            rabbitmq_url=rabbit.amqp_url,
            rabbitmq_management_url=rabbit.management_url,
            database_url=postgres.dsn(DATABASE),
            topology=wanted.topology,
            http_host=LOOPBACK,
            http_port=0,  # chosen when the service starts
        )
        applied = apply(topology, settings.address)
        say(f"RabbitMQ {rabbit.version} is up; {applied.declared} parts of the topology declared.")
        folder = wanted.data_dir or Path(tempfile.mkdtemp(prefix="tarry-service-"))
        service = Guarded(throwaway=[] if wanted.data_dir else [folder])
        stack.callback(service.close)
        log = _new_log(folder)
        style = "console" if origins["log_format"] == DEFAULT else settings.log_format
        port = _start(service, _service(settings, style, log), wanted.http_port, ports.get("HTTP"))
        made = Stage(
            address=settings.address,
            dsn=settings.dsn,
            http_url=f"http://{LOOPBACK}:{port}",
            topology=topology,
            broker=f"RabbitMQ {rabbit.version} ({rabbit.source})",
            service=service,
            service_log=log,
        )
        say(f"The service is ready: {made.http_url}/readyz and /metrics.")
        for change in keep(wanted.data_dir, ports, _ports(made, wanted)):
            say(change)
        yield made


def _given(wanted: StageOptions, topology: Topology) -> GivenBroker:
    settings = load_settings(rabbitmq_url=wanted.url, rabbitmq_management_url=wanted.management_url)
    new = wanted.data_dir is None or not (wanted.data_dir / "postgres").exists()
    return given_broker(settings.address, topology.broker_names, series=wanted.series, new_database=new)


def _ports(made: Stage, wanted: StageOptions) -> dict[str, int]:
    """The ports that this process chose."""
    ports = {"Postgres": urlsplit(made.dsn).port}
    if wanted.url is None:
        ports |= {"AMQP": made.address.port, "management": urlsplit(made.address.management).port}
    if wanted.http_port is None:
        ports |= {"HTTP": urlsplit(made.http_url).port}
    return {name: port for name, port in ports.items() if port is not None}


def _new_log(folder: Path) -> Path:
    """Keeps the log of the previous start as `service.log.1`."""
    log = folder / "service.log"
    if log.exists():
        log.replace(folder / "service.log.1")
    return log


def _service(settings: Settings, log_format: str, log: Path) -> GuardedProgram:
    ours = {
        "RABBITMQ_URL": settings.address.url,
        "RABBITMQ_MANAGEMENT_URL": settings.address.management_with_login,
        "DATABASE_URL": settings.dsn,
        "HTTP_HOST": settings.http_host,
        "TARRY_TOPOLOGY": str(settings.topology_folder.absolute()),
        "TARRY_LOG": log_format,
    }
    return GuardedProgram(
        argv=[sys.executable, "-m", "tarry", "serve"],
        env=dict(os.environ) | ours,
        cwd=str(Path.cwd()),
        log=str(log.absolute()),
        grace=12,
    )


def _start(service: Guarded, program: GuardedProgram, wanted: int | None, before: int | None) -> int:
    """Starts the service on the wanted port, or on a free one; returns the port once the service is ready.

    Another process can take a free port before the service does: then the service starts on the next free one.
    """
    port = wanted or free_ports.again([before])[0]
    for _ in range(PORTS_TRIED):
        service.start(replace(program, env={**program.env, "HTTP_PORT": str(port)}))
        _wait_until_ready(service, port, Path(program.log))
        if service.running:
            return port
        if wanted or free_ports.is_free(port):
            break
        port = free_ports.again([None])[0]
    raise ended(Path(program.log))


def ended(log: Path) -> StartupError:
    return StartupError(f"The service ended unexpectedly. Its log:\n{tail(log)}")


def _wait_until_ready(service: Guarded, port: int, log: Path) -> None:
    """Returns once this service is ready, or has ended. An answer of another service on the port does not count."""
    deadline = time.monotonic() + READY_WITHIN
    with httpx.Client(base_url=f"http://{LOOPBACK}:{port}", timeout=2, trust_env=False) as http:
        while service.running:
            if time.monotonic() > deadline:
                raise StartupError(f"The service was not ready in {READY_WITHIN:.0f} s. Its log:\n{tail(log)}")
            with suppress(httpx.HTTPError, ValueError, LookupError, TypeError):
                answer = http.get("/readyz").json()
                if (answer["status"], answer["process"]) == ("ready", service.pid):
                    return
            time.sleep(0.05)
