"""Without tokens, on a loopback address: everybody on this machine may, and no web page."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable

import pytest

from tests.harness.proxy import Proxy
from tests.harness.spaces import with_port
from tests.harness.waiting import wait_for
from tests.integration.api.calling import Installation
from tests.integration.router.serving import TARRY, routers

pytestmark = pytest.mark.one_series


def test_everything_is_allowed_as_local(local: Installation) -> None:
    retry = local.schedule("slow.local", "local-1")
    assert local.get(f"/retries/{retry}/payload")["size"] == 7


def test_a_page_of_another_site_is_refused(local: Installation) -> None:
    for headers, status in (
        ({"Host": "evil.example.com"}, 421),
        ({"Origin": "https://evil.example.com"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ):
        answer = local.call("GET", "/retries", headers=headers)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")


def test_an_address_open_to_others_is_refused_without_tokens(local: Installation) -> None:
    environment = os.environ | local.place.environment | {"HTTP_HOST": "0.0.0.0"}  # noqa: S104 - the very point
    done = subprocess.run(TARRY, env=environment, capture_output=True, text=True, check=False, timeout=90)
    assert done.returncode == 2
    assert "API_TOKENS" in done.stderr
    assert "HTTP_API=off" in done.stderr
    assert "Traceback" not in done.stderr


def test_with_the_api_off_health_and_metrics_are_all_there_is(local: Installation) -> None:
    with routers(local.place) as start:
        router = start(HTTP_API="off", HTTP_HOST="0.0.0.0").wait_ready()  # noqa: S104 - the very point
        assert router.get("/healthz")[0] == router.get("/metrics")[0] == 200
        for path in ("/api/v1/retries", "/api/v1/openapi.json", "/openapi.json", "/docs"):
            assert router.get(path)[0] == 404


def test_without_postgres_looking_says_so_and_the_status_has_what_can_be_had(
    local: Installation, proxy: Callable[..., Proxy]
) -> None:
    wire = proxy(local.place.dsn)
    with routers(local.place) as start:
        router = start(DATABASE_URL=with_port(local.place.dsn, wire.port)).wait_ready()
        with contextlib.closing(Installation(local.place, router, None)) as cut_off:
            wire.refuse()
            wire.cut()
            answer = cut_off.call("GET", "/retries")
            assert (answer.status_code, answer.headers["content-type"]) == (503, "application/problem+json")
            assert "Postgres" in answer.json()["detail"]
            found = cut_off.get("/status")
            assert found["books"] is None
            assert "retry.scheduled" in found["queues"]
            assert "Postgres" in found["troubles"][0]


def test_a_postgres_that_hangs_keeps_no_caller_waiting_for_ever(
    local: Installation, proxy: Callable[..., Proxy]
) -> None:
    wire = proxy(local.place.dsn)
    with routers(local.place) as start:
        router = start(DATABASE_URL=with_port(local.place.dsn, wire.port), API_TIMEOUT_S="2").wait_ready()
        with contextlib.closing(Installation(local.place, router, None)) as hung:
            wire.blackhole()
            for method, path in (("GET", "/retries"), ("POST", "/intake/pause")):
                answer = hung.call(method, path, json=None if method == "GET" else {})
                assert answer.status_code in {503, 504}, answer.text
                assert answer.headers["content-type"] == "application/problem+json"
            assert hung.client.get("/healthz", timeout=20).status_code == 200
            wire.heal()
            assert wait_for(lambda: hung.call("GET", "/retries").status_code == 200, deadline=40)
