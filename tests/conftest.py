"""Fixtures for tests against a real broker and a real PostgreSQL. Nothing starts until a test asks for it.

`broker` the run's broker · `vhost` a fresh vhost on it · `database` a fresh, migrated database · `proxy` a TCP proxy
that can misbehave · `private_broker`, `private_postgres`, `cluster` services of the test's own, to kill and restart.
BROKER=3.10|4.3|all|any says which brokers every test of a broker runs on; those marked `one_series` take the first.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog

from tarry import embedded
from tarry.errors import NoBrokerError
from tests.harness.proxy import Proxy
from tests.harness.scheduling import Scheduling
from tests.harness.services import MissingBrokerError, RemoteServices, RunServices, ServiceDesk, Services
from tests.harness.spaces import (
    Database,
    SharedBroker,
    Vhost,
    address_of,
    drop_database,
    drop_vhost,
    make_database,
    make_vhost,
)
from tests.harness.wanted import missing, wanted_series

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

run_services = pytest.StashKey[RunServices]()
service_desk = pytest.StashKey[ServiceDesk]()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.stash[run_services] = RunServices()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling:
    return Scheduling(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    """Called by pytest-xdist for each worker, in the controlling process."""
    config: pytest.Config = node.config  # type: ignore[attr-defined]
    if service_desk not in config.stash:
        config.stash[service_desk] = ServiceDesk(config.stash[run_services])
    node.workerinput["service_desk"] = config.stash[service_desk].address  # type: ignore[attr-defined]


def pytest_unconfigure(config: pytest.Config) -> None:
    if desk := config.stash.get(service_desk, None):
        desk.close()
    if services := config.stash.get(run_services, None):
        services.close()


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
    """A command that is run in this process may set up logs on a stream that is closed after it."""
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
    with contextlib.closing(RemoteServices(pytestconfig.workerinput["service_desk"])) as remote:  # type: ignore[attr-defined]
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
def proxy() -> Iterator[Callable[[str | tuple[str, int]], Proxy]]:
    """Call it with a URL, a DSN or (host, port); the proxy's own address is `.port`."""
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
