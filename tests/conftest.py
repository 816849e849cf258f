"""Fixtures for tests against a real broker and a real PostgreSQL. Nothing starts until a test asks for it.

`broker` the run's broker · `vhost` a new vhost on it · `database` a new, migrated database · `installation` tarry on
both · `start` starts routers of it · `store` the stores of two routers · `proxy` a TCP proxy that can cut and delay ·
`private_broker`, `private_postgres`, `cluster` services of the test's own, to kill and restart.
BROKER=3.10|4.3|all|any selects the brokers that tests run on; those marked `one_series` run on the first.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
import structlog

from tarry import embedded
from tarry.errors import NoBrokerError
from tests.support import memory_disk
from tests.support.audit_store import AuditStore
from tests.support.installation import Installation
from tests.support.proxy import Proxy
from tests.support.router import Router, routers
from tests.support.scheduling import Scheduling
from tests.support.services import MissingBrokerError, RemoteServices, RunServices, Services, ServiceServer
from tests.support.spaces import (
    Database,
    SharedBroker,
    Vhost,
    address_of,
    drop_database,
    drop_vhost,
    make_database,
    make_vhost,
)
from tests.support.wanted import missing, wanted_series

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# No deadline: on a busy machine an example may take long.
hypothesis.settings.register_profile("tarry", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("tarry")

run_services = pytest.StashKey[RunServices]()
service_server = pytest.StashKey[ServiceServer]()
in_memory = pytest.StashKey[Path]()


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell starts background jobs like this, and processes that tests interrupt would inherit it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        return
    config.stash[run_services] = RunServices()
    if made := memory_disk.folder():
        config.stash[in_memory] = made
        os.environ |= memory_disk.settings(made)
        tempfile.tempdir = None  # read again from the environment


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling:
    return Scheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    """Called by pytest-xdist for each worker, in the controlling process."""
    config: pytest.Config = node.config  # type: ignore[attr-defined]
    if service_server not in config.stash:
        config.stash[service_server] = ServiceServer(config.stash[run_services])
    node.workerinput["service_server"] = config.stash[service_server].address  # type: ignore[attr-defined]


def pytest_unconfigure(config: pytest.Config) -> None:
    if server := config.stash.get(service_server, None):
        server.close()
    if services := config.stash.get(run_services, None):
        services.close()
    if made := config.stash.get(in_memory, None):
        shutil.rmtree(made, ignore_errors=True)


def pytest_report_header() -> str:
    return f"brokers: {', '.join(series or 'any' for series in wanted_series())} (set BROKER to change)"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    services = config.stash.get(run_services, None)
    for line in services.used() if services else ():
        terminalreporter.write_line(line)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    own = any("series" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    if "series" in metafunc.fixturenames and not own and (chosen := wanted_series()) != [None]:
        once = metafunc.definition.get_closest_marker("one_series")
        metafunc.parametrize("series", chosen[:1] if once else chosen, scope="session")


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """A command run in this process may configure logging on a stream that is closed afterwards."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture(scope="session")
def series() -> str | None:
    """The broker series of this test; None is any. Overridden when BROKER names one or all."""
    return None


@pytest.fixture(scope="session")
def services(pytestconfig: pytest.Config) -> Iterator[Services]:
    if own := pytestconfig.stash.get(run_services, None):
        yield own
        return
    with contextlib.closing(RemoteServices(pytestconfig.workerinput["service_server"])) as remote:  # type: ignore[attr-defined]
        yield remote


@pytest.fixture(scope="session")
def broker(services: Services, series: str | None) -> SharedBroker:
    try:
        facts = services.broker(series)
    except MissingBrokerError as problem:
        missing(str(problem), series)
    return SharedBroker(facts.version, facts.source, facts.amqp_url, facts.management_url, series, services)


@pytest.fixture
def vhost(broker: SharedBroker) -> Iterator[Vhost]:
    fresh = make_vhost(broker.amqp_url, broker.management_url, broker.version)
    yield fresh
    drop_vhost(fresh)


@pytest.fixture
def database(services: Services) -> Iterator[Database]:
    maintenance = services.postgres()
    fresh = make_database(maintenance)
    yield fresh
    drop_database(maintenance, fresh)


@pytest.fixture
def installation(vhost: Vhost, database: Database, tmp_path: Path) -> Iterator[Installation]:
    """On a vhost and a database of its own, with the topology applied."""
    folder = tmp_path / "topology"
    with contextlib.closing(Installation(vhost.amqp_url, vhost.management_url, database.dsn, folder)) as made:
        yield made.apply()


@pytest.fixture
def start(installation: Installation) -> Iterator[Callable[..., Router]]:
    """Starts a router of the installation; its arguments are settings."""
    with routers(installation) as starter:
        yield starter


@pytest.fixture
def store(database: Database) -> Iterator[AuditStore]:
    with contextlib.closing(AuditStore(database.dsn)) as made:
        yield made


@pytest.fixture
def proxy() -> Iterator[Callable[[str | tuple[str, int]], Proxy]]:
    """Call it with a URL, a DSN or (host, port); the proxy listens on `.port`."""
    with contextlib.ExitStack() as stack:

        def start(target: str | tuple[str, int]) -> Proxy:
            return stack.enter_context(Proxy(address_of(target) if isinstance(target, str) else target))

        yield start


@pytest.fixture
def private_broker(series: str | None) -> Iterator[Callable[..., embedded.Broker]]:
    """A node of this test's own, to kill -9, pause and restart. Takes 4 to 6 seconds; use `vhost` if that will do."""
    with contextlib.ExitStack() as stack:

        def start(extra_config: Sequence[str] = ()) -> embedded.Broker:
            try:
                return stack.enter_context(embedded.broker(series, extra_config=extra_config))
            except NoBrokerError as problem:
                missing(str(problem), series)

        yield start


@pytest.fixture
def private_postgres() -> Iterator[Callable[..., embedded.EmbeddedPostgres]]:
    """A PostgreSQL of this test's own, to kill and restart. Costs about one second."""
    with contextlib.ExitStack() as stack:
        yield lambda *, durable=False, settings=(): stack.enter_context(
            embedded.postgres(durable=durable, settings=settings)
        )


@pytest.fixture
def cluster(series: str | None) -> Iterator[embedded.EmbeddedCluster]:
    """Three nodes of this test's own. Takes 10 to 20 seconds."""
    with contextlib.ExitStack() as stack:
        try:
            nodes = stack.enter_context(embedded.cluster(3, series))
        except NoBrokerError as problem:
            missing(str(problem), series)
        yield nodes


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """For data of PostgreSQL, which runs as another user when we are root: pytest's own folders are closed to it."""
    with tempfile.TemporaryDirectory(prefix="tarry-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)
