"""A Prometheus that scrapes a service under load: what the rules, the dashboards and the docs ask for is there, and an
alert fires while a destination is stalled, and no longer once it works again.

The broker waits three minutes before it offers a refused message again; here it is told to wait a second.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import NackError

from tarry import embedded
from tarry.errors import NoBrokerError
from tarry.service.alerts import ALERTS, rules_text
from tarry.service.grafana import DASHBOARDS, INTERVAL
from tarry.service.reference import families
from tests.support.cli import run_cli
from tests.support.events import WITH_EVENTS
from tests.support.installation import Installation
from tests.support.prometheus import Prometheus, require, scraping
from tests.support.promql import known, mistakes
from tests.support.receiver import SECRET, receiving
from tests.support.router import Router, routers
from tests.support.services import Services
from tests.support.spaces import make_database, make_vhost
from tests.support.waiting import wait_for
from tests.support.wanted import missing
from tests.unit.service.test_grafana import of_the_docs, queries, read

pytestmark = pytest.mark.one_series

OFFER_AGAIN_MS = 1_000
SCALE = 0.01
"""Of the times in the rules: what must hold for two minutes must hold for a second."""

GOOD, FULL, LIMITED = "quick.orders", "quick.full", "quick.limited"
GUARDED = """
[[policy]]
name = "guarded"
match = {{ queue = "{queue}" }}
schedule = ["500ms"]
max_retries = 3
budget = {{ per = "queue", limit = 1, every = "1h" }}
eligibility = {{ url = "http://127.0.0.1:{port}/no-answer", key = "user" }}
"""
HOOK = """
[[webhook]]
name = "listener"
url = "http://127.0.0.1:{port}/hook"
events = ["*"]
queues = ["{queue}"]
secret_env = "HOOK_SECRET"
allow_private = true
"""
COUNTED = {
    *("retries_executed_total", "tarry_open", "tarry_drift_seconds_bucket", "tarry_statistics_lag_seconds"),
    *("tarry_budget_total", "tarry_eligibility_requests_total", "tarry_eligibility_unknown_total"),
    *("tarry_events_lag_seconds", "tarry_events_published_total", "tarry_webhook_deliveries_total"),
    *("tarry_webhook_delivery_seconds_bucket", "tarry_spans_total"),
}
"""Metrics that have a value soon, because the demo uses what they are about."""
STALLED = "TarryDestinationStalled"


@dataclass
class Demo:
    """A service that Prometheus scrapes, and the load on it."""

    installation: Installation
    router: Router
    prometheus: Prometheus


@pytest.fixture(scope="module")
def node(series: str | None) -> Iterator[embedded.Broker]:
    try:
        with embedded.broker(series) as started:
            name = "dead_letter_worker_publisher_confirm_timeout"
            started.ctl("eval", f"application:set_env(rabbit, {name}, {OFFER_AGAIN_MS}).")
            yield started
    except NoBrokerError as problem:
        missing(str(problem), series)


@pytest.fixture(scope="module")
def demo(node: embedded.Broker, services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    require("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    vhost = make_vhost(node.amqp_url, node.management_url, node.version)
    dsn = make_database(services.postgres()).dsn
    with receiving() as receiver:
        about = {"port": receiver.port, "queue": LIMITED}
        policies = WITH_EVENTS.replace("[[policy]]", GUARDED.format(**about) + "\n[[policy]]", 1) + HOOK.format(**about)
        made = Installation(vhost.amqp_url, vhost.management_url, dsn, folder / "topology", policies).apply()
        with contextlib.closing(made) as installation, routers(installation) as start, load(installation):
            router = start(TARRY_LOOK_EVERY="500ms", TARRY_BATCH="20", HOOK_SECRET=SECRET).wait_ready()
            with scraping([router.port], rules_text(SCALE), folder / "data") as prometheus:
                yield Demo(installation, router, prometheus)


@contextlib.contextmanager
def load(installation: Installation) -> Iterator[None]:
    """Requests for a destination that works, one after the other, and a consumer that takes what returns."""
    stopping = threading.Event()

    def run() -> None:
        with installation.open_channel() as channel:
            channel.queue_declare(GOOD, durable=True, arguments={"x-queue-type": "quorum"})
            channel.queue_declare(LIMITED, durable=True, arguments={"x-queue-type": "quorum"})
            for number in range(3):
                headers = {"original_queue": LIMITED, "user": "ann"}
                about = pika.BasicProperties(delivery_mode=2, message_id=f"limited-{number}", headers=headers)
                channel.basic_publish("", "retry.scheduled", b"order", about)
            for number in itertools.count():
                about = pika.BasicProperties(
                    delivery_mode=2, message_id=f"load-{number}", headers={"original_queue": GOOD}
                )
                channel.basic_publish("", "retry.scheduled", b"order", about)
                channel.basic_get(GOOD, auto_ack=True)
                if stopping.wait(0.02):
                    return

    publisher = threading.Thread(target=run, daemon=True)
    publisher.start()
    try:
        yield
    finally:
        stopping.set()
        publisher.join(30)


def asked() -> list[str]:
    """Every query of the rules, the dashboards and the docs, as Prometheus gets it."""
    shown = (expr for one in DASHBOARDS for expr in queries(read(one.name)))
    found = {*(alert.expr for alert in ALERTS), *shown, *of_the_docs()}
    return sorted(expr.replace(INTERVAL, "1m").replace("$queue", ".*") for expr in found)


def exposed(prometheus: Prometheus) -> dict[str, set[str]]:
    """Every series that was scraped, with its labels. A metric that has no value yet has a name only."""
    found: dict[str, set[str]] = {}
    for one in prometheus.series('{job="tarry"}'):
        found.setdefault(one["__name__"], set()).update(set(one) - {"__name__"})
    return found


def test_every_query_names_what_a_running_service_exposes(demo: Demo) -> None:
    prometheus = demo.prometheus
    wait_for(lambda: set(exposed(prometheus)) >= COUNTED, deadline=120, what="what the demo does to be scraped")
    found, declared = exposed(prometheus), prometheus.metadata()
    assert {one.name for one in families() if not {one.name, one.exposed} & declared} == set()
    # A metric that had nothing to count yet is described in the scrape, and has the labels of the registry.
    assert {name: labels for name, labels in found.items() if labels != known().get(name, labels)} == {}
    series = {**known(), **found}
    assert {expr: wrong for expr in asked() if (wrong := mistakes(expr, series))} == {}


def test_every_query_is_answered_by_prometheus(demo: Demo) -> None:
    """An error would be raised. Which queries find something depends on the moment."""
    answers = [demo.prometheus.query(expr) for expr in asked()]
    assert any(answers)


def test_an_alert_fires_while_a_destination_is_stalled_and_resolves_afterwards(demo: Demo) -> None:
    installation, prometheus = demo.installation, demo.prometheus
    installation.declare(FULL, x_max_length=1, x_overflow="reject-publish")
    attached = run_cli(["attach", FULL], installation.environment)
    assert attached.exit_code == 0, attached.output
    wait_for(lambda: prometheus.query("sum(retries_executed_total) > 0"), deadline=60, what="returns to be scraped")
    assert STALLED not in prometheus.alerts("firing")
    with installation.open_channel() as channel:
        channel.confirm_delivery()
        with pytest.raises(NackError):
            fill(channel)
    for number in range(10):
        installation.request(FULL, f"held-up-{number}")
    wait_for(lambda: STALLED in prometheus.alerts("firing"), deadline=120, what="the alert")
    assert "TarryNoRouter" not in prometheus.alerts("firing")

    arrived = set[str | None]()
    wait_for(lambda: took_all(installation, arrived), deadline=120, what="all messages to return")
    wait_for(lambda: STALLED not in prometheus.alerts("firing"), deadline=120, what="the alert to resolve")
    assert prometheus.query(f'ALERTS{{alertname="{STALLED}"}}') == []


def fill(channel: BlockingChannel) -> None:
    """Until it refuses: a quorum queue takes some more than its limit."""
    for _ in range(100):
        channel.basic_publish("", FULL, b"in the way")


def took_all(installation: Installation, arrived: set[str | None]) -> bool:
    """The destination works again: its consumer takes what it is offered, and what the broker forgot the address of is
    published again by the service.
    """
    while (message := installation.get(FULL)) is not None:
        arrived.add(message[0].message_id)
    return {f"held-up-{number}" for number in range(10)} <= arrived
