"""The conformance suite: every case of the table, against every client. The cases of a client share an installation."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from tarry.client import Attempt
from tests.integration.client.adapters import Consumer
from tests.integration.client.conformance import ATTACHED, CASES, CONFORMING, ID, MESSAGE_ID, Case
from tests.integration.client.failures import error_of
from tests.integration.client.installation import QUEUE, ClientInstallation
from tests.integration.client.programs import available
from tests.support.spaces import SharedBroker, drop_vhost, make_vhost
from tests.support.waiting import eventually, wait_for

QUEUES = (QUEUE, ATTACHED, "retry.scheduled", "retry.audit")


class Scripted:
    """A handler that ends as the case says."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.attempts: list[Attempt] = []
        self.go = threading.Event()

    def __call__(self, attempt: Attempt, _body: bytes) -> None:
        self.attempts.append(attempt)
        assert not self.case.until_started or self.go.wait(60)
        if self.case.failure is not None:
            raise error_of(self.case.failure)


@pytest.fixture(scope="module")
def shared(broker: SharedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientInstallation]:
    vhost = make_vhost(broker.amqp_url, broker.management_url, broker.version)
    folder = tmp_path_factory.mktemp("conformance") / "topology"
    with contextlib.closing(ClientInstallation(vhost.amqp_url, vhost.management_url, "", folder)) as made:
        made.apply().declare(QUEUE)
        attached = {"x-queue-type": "quorum", "x-dead-letter-exchange": "retry.intake"}
        made.channel.queue_declare(ATTACHED, durable=True, arguments=attached)
        yield made
    drop_vhost(vhost)


@pytest.fixture
def empty(shared: ClientInstallation) -> ClientInstallation:
    for queue in QUEUES:
        shared.channel.queue_purge(queue)
    shared.starts.clear()
    return shared


@pytest.fixture(params=CONFORMING)
def client(request: pytest.FixtureRequest) -> type[Consumer]:
    return available(CONFORMING[request.param])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.promise)
def test_conformance(case: Case, client: type[Consumer], empty: ClientInstallation) -> None:
    handler, installation = Scripted(case), empty
    for _ in range(case.deliveries):
        installation.publish(b"\x00body", MESSAGE_ID, queue=case.queue, headers=dict(case.headers), **case.properties)
    with client(installation.amqp_url, case.queue, handler, case.options, suppress=case.suppress):
        wait_for(lambda: len(handler.attempts) >= case.handled, what="the handler to run")
        if case.until_started:
            installation.started(1)
            handler.go.set()
        check_request(case, installation)
        check_reports(case, installation)
        eventually(lambda: check_empty(installation, case.queue))
    assert len(handler.attempts) == case.handled
    assert case.attempt in (None, handler.attempts[0])
    assert [one.consumer for one in installation.starts] == ([case.consumer] if case.until_started else [])
    for queue in (case.queue, "retry.scheduled", "retry.audit"):
        check_empty(installation, queue)


def check_request(case: Case, installation: ClientInstallation) -> None:
    if case.request is None:
        return
    request = installation.take()
    assert request.body == b"\x00body"
    assert (request.properties.message_id, request.properties.delivery_mode) == (MESSAGE_ID, 2)
    assert request.properties.expiration is None
    assert {name: request.headers.get(name) for name in case.request} == case.request
    assert not set(case.without) & set(request.headers)


def check_reports(case: Case, installation: ClientInstallation) -> None:
    if not case.reported:
        return
    (outcome,) = installation.reported(1)
    assert (outcome.retry_id, outcome.round, outcome.retry_count) == (ID, 4, 3)
    assert 0 <= outcome.duration_ms < 60_000


def check_empty(installation: ClientInstallation, queue: str) -> None:
    assert installation.depth(queue) == 0
