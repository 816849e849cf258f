"""Without tokens, on a loopback address: everybody on this machine may, and no web page."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.api import ApiInstallation
from tests.support.cli import run_process
from tests.support.proxy import Proxy
from tests.support.router import routers
from tests.support.spaces import address_of, with_port
from tests.support.waiting import wait_for

pytestmark = pytest.mark.one_series


def test_everything_is_allowed_as_local(local: ApiInstallation) -> None:
    retry = local.schedule("slow.local", "local-1")
    assert local.get(f"/retries/{retry}/payload")["size"] == 7


def test_a_page_of_another_site_is_refused(local: ApiInstallation) -> None:
    for headers, status in (
        ({"Host": "evil.example.com"}, 421),
        ({"Origin": "https://evil.example.com"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ):
        answer = local.call("GET", "/retries", headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")


def test_an_address_open_to_others_is_refused_without_tokens(local: ApiInstallation) -> None:
    open_to_others = local.installation.environment | {"HTTP_HOST": "0.0.0.0"}  # noqa: S104 - tested here
    done = run_process(["serve"], open_to_others, timeout=90)
    assert done.returncode == 2
    assert "API_TOKENS" in done.stderr
    assert "HTTP_API=off" in done.stderr
    assert "Traceback" not in done.stderr


def test_with_the_api_off_health_and_metrics_are_all_there_is(local: ApiInstallation) -> None:
    with routers(local.installation) as start:
        router = start(HTTP_API="off", HTTP_HOST="0.0.0.0").wait_ready()  # noqa: S104 - the very point
        assert router.get("/healthz")[0] == router.get("/metrics")[0] == 200
        for path in ("/api/v1/retries", "/api/v1/openapi.json", "/openapi.json", "/docs"):
            assert router.get(path)[0] == 404


@pytest.fixture(scope="module")
def wire(local: ApiInstallation) -> Iterator[Proxy]:
    """Between a second service and Postgres."""
    with Proxy(address_of(local.installation.dsn)) as made:
        yield made


@pytest.fixture(scope="module")
def impatient(local: ApiInstallation, wire: Proxy) -> Iterator[ApiInstallation]:
    """That service. Its API answers within four seconds, whatever Postgres does."""
    with routers(local.installation) as start:
        router = start(DATABASE_URL=with_port(local.installation.dsn, wire.port), API_TIMEOUT_S="4").wait_ready()
        with contextlib.closing(ApiInstallation(local.installation, router, None)) as made:
            yield made


@pytest.fixture
def cut_off(impatient: ApiInstallation, wire: Proxy) -> Iterator[ApiInstallation]:
    """To be cut off from Postgres by the test."""
    yield impatient
    wire.heal()
    wait_for(lambda: impatient.call("GET", "/retries").status_code == 200, deadline=60, what="Postgres to be back")


def test_without_postgres_reads_say_so_and_status_shows_the_rest(cut_off: ApiInstallation, wire: Proxy) -> None:
    wire.refuse()
    wire.cut()
    answer = cut_off.call("GET", "/retries")
    assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
    assert "Postgres" in answer.json()["detail"]
    found = cut_off.get("/status")
    assert found["audit"] is None
    assert "retry.scheduled" in found["queues"]
    assert "Postgres" in found["troubles"][0]


def test_a_postgres_that_hangs_keeps_no_caller_waiting_for_ever(cut_off: ApiInstallation, wire: Proxy) -> None:
    wire.blackhole()
    with ThreadPoolExecutor() as callers:
        looking = callers.submit(cut_off.call, "GET", "/retries")
        acting = callers.submit(cut_off.call, "POST", "/intake/pause", json={})
    for answer in (looking.result(), acting.result()):
        assert answer.status_code in {503, 504}, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
    assert cut_off.client.get("/healthz", timeout=20).status_code == 200
    wire.heal()
    assert wait_for(lambda: cut_off.call("GET", "/retries").status_code == 200, deadline=60)
