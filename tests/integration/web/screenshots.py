"""Writes the pictures of the dashboard that the docs show: `make screenshots`.

They are of a real service on a private broker. `make screenshots ARGS=FOLDER` writes every page there instead, wide and
narrow, light and dark, and what is seen on a new installation, by a viewer, after a mistake, and while Postgres or the
broker is away, to look at.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import psycopg
from playwright.sync_api import Browser

from tests.integration.operations.review.reviewing import send_to_review
from tests.support import memory_disk
from tests.support.api import LOOK, OPERATE, TOKENS, ApiInstallation, api_installation
from tests.support.browser import DESK, PHONE, Visitor, apart, browser, visitor
from tests.support.proxy import Proxy
from tests.support.router import routers
from tests.support.services import RunServices
from tests.support.spaces import SharedBroker, address_of, with_port
from tests.support.wanted import wanted_series

INTO = Path("docs/img")
LARGEST = 150_000
"""Bytes of one picture."""

POLICIES = """
[[policy]]
name = "payments"
match = { queue = "payments" }
cost = 5
schedule = ["500ms", "2s", "8s", "32s", "2m"]
max_retries = 5

[[policy]]
name = "mails"
match = { queue = "mails.*" }
schedule = ["15m", "30m", "1h", "3h", "6h", "12h", "24h"]
max_retries = 7

[[policy]]
name = "default"
backoff = { base = "5m", factor = 2, cap = "1h" }
jitter = "5m"
max_retries = 4
"""


DAY = """
insert into statistic (span, starts, kind, queue, policy, value, attempt, scheduled, returned, succeeded, failed,
                       exhausted, success_ms, drift_ms, success_bins, drift_bins)
select 'hour', date_trunc('hour', clock_timestamp(), 'UTC') - hours * interval '1 hour', kind, queue, policy,
       case kind when 'error' then error else '' end, attempt, tried, tried, good, tried - good,
       case when attempt = 3 then (tried - good) / 2 else 0 end, good * wait, tried * 12::bigint,
       case when kind = 'queue'
            then array[0, 0, good / 2, good / 4, good - good / 2 - good / 4, 0, 0, 0, 0, 0, 0, 0, 0, 0] end,
       case when kind = 'queue' then array[tried - tried / 50, tried / 50, 0, 0, 0, 0, 0, 0, 0, 0] end
  from (select *, (tried * case when queue = 'payments' and hours between 5 and 8 then 0.1 else share end)::int as good
          from (select *, (volume * (1.2 + sin((hours + 3) / 3.8)) * power(0.55, attempt - 1))::int as tried
                  from generate_series(1, 23) as hours
                 cross join (values ('payments', 'payments', 'c4b1a2d3e4f50617', 60, 0.82, 20000::bigint),
                                    ('orders', 'default', '9a0f77aa5522bb31', 40, 0.64, 130000),
                                    ('mails.welcome', 'mails', '1be07c5f3d2a9908', 25, 0.41, 240000),
                                    ('invoices', 'default', '5d2c9bb0417ae6f2', 12, 0.03, 310000))
                       as one (queue, policy, error, volume, share, wait)
                 cross join generate_series(1, 3) as attempt) as tries) as outcomes
 cross join (values ('queue'), ('error')) as kinds (kind)
"""
ERRORS = """
insert into statistic_error (queue, fingerprint, error_class, error_type, example) values
    ('payments', 'c4b1a2d3e4f50617', 'retryable', 'Busy', 'the card terminal is busy'),
    ('orders', '9a0f77aa5522bb31', 'retryable', 'TimeoutError', 'no answer from payments-3 within 30 s'),
    ('mails.welcome', '1be07c5f3d2a9908', 'retryable', 'Bounced', '421 try again later'),
    ('invoices', '5d2c9bb0417ae6f2', 'retryable', 'SchemaError', 'field `total` is missing')
"""


def main() -> None:
    services = RunServices()
    try:
        series = wanted_series()[-1]
        facts = services.broker(series)
        shared = SharedBroker(facts.version, facts.source, facts.amqp_url, facts.management_url, series, services)
        with tempfile.TemporaryDirectory() as name:
            (Path(name) / "topology").mkdir()
            (Path(name) / "topology" / "tarry.toml").write_text(POLICIES, encoding="utf-8")
            with api_installation(shared, services, Path(name), **TOKENS) as api:
                if len(sys.argv) > 1:
                    _look_at_everything(api, Path(sys.argv[1]))
                else:
                    _fill(api)
                    with browser() as opened:
                        _take_all(opened, api)
    finally:
        services.close()


def _fill(api: ApiInstallation) -> None:
    """Some hours of somebody's work, in a few seconds."""
    for number in range(40):
        queue = ("orders", "mails.welcome", "invoices")[number % 3]
        about = {"error_type": "TimeoutError", "error_reason": f"no answer from payments-{number % 4} within 30 s"}
        body = b'{"order": %d, "customer": "acme", "lines": [{"sku": "A-17", "count": 2}]}' % (4700 + number)
        api.schedule(queue, f"ORDER-{4700 + number}", body, owner="acme" if number % 2 else "globex", **about)
    for number in range(25):
        api.installation.request(api.installation.declare("payments"), f"PAY-{number}", b"{}", error_type="Busy")
    groups = {
        "CardDeclined": ("orders", 34, "the card of customer 4711 was declined"),
        "Bounced": ("mails.welcome", 9, "550 no such user"),
        "SchemaError": ("invoices", 3, "field `total` is missing"),
    }
    for error, (queue, count, reason) in groups.items():
        ids = [f"{error.upper()}-{number}" for number in range(count)]
        send_to_review(api.installation, queue, ids, error_type=error, error_reason=reason, body=b'{"total": null}')
    for number in range(25):
        api.wait_state(api.installation.retry_of(f"PAY-{number}"), "returned")
    answer = api.call("POST", "/queues/payments/pause", json={"reason": "INC-42: the card terminal is down"})
    assert answer.status_code == 200, answer.text
    for number in range(6):
        api.installation.request("payments", f"HELD-{number}", b"{}", error_type="Busy")
    for number in range(6):
        api.wait_state(api.installation.retry_of(f"HELD-{number}"), "held")
    with psycopg.connect(api.installation.dsn, autocommit=True) as connection:
        connection.execute(DAY)
        connection.execute(ERRORS)
    time.sleep(10)  # the broker's statistics are that old


def _pages(api: ApiInstallation) -> dict[str, str]:
    prepared = {"kind": "cancel", "retries": {"queue": "orders", "states": ["scheduled"]}, "prepared": True}
    made = api.call("POST", "/review/jobs", json=prepared | {"reason": "INC-42", "watch": "10s"})
    assert made.status_code == 201, made.text
    return {
        "overview": "/",
        "destinations": "/destinations",
        "destination": "/destinations/one?name=payments",
        "retries": "/retries?state=scheduled&queue=orders",
        "retry": f"/retries/{api.installation.retry_of('HELD-1')}",
        "edit": f"/retries/{api.installation.retry_of('SCHEMAERROR-1')}",
        "stuck": "/stuck",
        "review": "/review",
        "selection": "/review/selection?queue=orders",
        "job": f"/review/jobs/{made.json()['id']}",
        "statistics": "/statistics?since=24h",
        "policies": "/policies",
        "topology": "/topology",
        "audit": "/audit",
        "actions": "/actions",
        "runbook": "/runbook",
    }


LEFT_OUT = ("stuck", "runbook")
"""Pages that the docs do not show."""


def _look_at_everything(api: ApiInstallation, into: Path) -> None:
    """The second service is started before the browser: it could not be started while one is open."""
    into.mkdir(parents=True, exist_ok=True)
    made = api.installation
    with Proxy(address_of(made.dsn)) as postgres, Proxy(address_of(made.amqp_url)) as broker, routers(made) as start:
        wires = {"DATABASE_URL": with_port(made.dsn, postgres.port)}
        wires["RABBITMQ_URL"] = with_port(made.amqp_url, broker.port)
        other = start(**wires, **TOKENS, API_TIMEOUT_S="8").wait_ready()
        with browser() as opened:
            with visitor(opened, api.url) as person:
                _look(person.log_in(OPERATE), into, "new", NEW)
            apart(lambda: _fill(api))
            pages = _pages(api)
            _take_everything(opened, api, pages, into)
            with visitor(opened, api.url) as person:
                _look(person.log_in(OPERATE), into, "mistake", MISTAKES)
            with visitor(opened, api.url) as person:
                _look(person.log_in(LOOK), into, "viewer", pages)
            for name, wire in (("postgres", postgres), ("broker", broker)):
                with visitor(opened, f"http://127.0.0.1:{other.port}") as person:
                    person.log_in(OPERATE)
                    wire.refuse()
                    wire.cut()
                    person.page.wait_for_timeout(20_000)  # what was read before counts as fresh for so long
                    _look(person, into, f"without-{name}", AWAY)
                    wire.heal()


NEW = {"overview": "/"} | {
    name: f"/{name}" for name in ("destinations", "retries", "stuck", "review", "review/jobs", "actions", "audit")
}
AWAY = {"overview": "/"} | {name: f"/{name}" for name in ("destinations", "retries", "review", "topology")}
MISTAKES = {
    "retry": "/retries/ffffffff",
    "page": "/retries/x/y",
    "destination": "/destinations/one?name=none",
    "filter": "/retries?due_after=yesterday",
}


def _look(person: Visitor, into: Path, situation: str, pages: Mapping[str, str]) -> None:
    for name, path in pages.items():
        person.open(path)
        person.page.screenshot(path=into / f"{situation}-{name.replace('/', '-')}.png", full_page=name != "runbook")


def _take_everything(opened: Browser, api: ApiInstallation, pages: Mapping[str, str], into: Path) -> None:
    """Every page, wide and narrow, light and dark, as long as it is."""
    for width, scheme in ((DESK, "light"), (DESK, "dark"), (PHONE, "light"), (PHONE, "dark")):
        with visitor(opened, api.url, width=width, scheme=scheme) as person:
            person.open("/login")
            person.page.screenshot(path=into / f"login-{width}-{scheme}.png")
            person.log_in(OPERATE, "alice")
            for name, path in pages.items():
                person.open(path)
                person.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
                person.page.screenshot(path=into / f"{name}-{width}-{scheme}.png", full_page=name != "runbook")


def _take_all(opened: Browser, api: ApiInstallation) -> None:
    pages = {name: path for name, path in _pages(api).items() if name not in LEFT_OUT}
    with visitor(opened, api.url) as desk:
        desk.page.set_viewport_size({"width": 1200, "height": 800})
        desk.log_in(OPERATE, "alice")
        for name, path in pages.items():
            desk.open(path)
            if name == "edit":
                desk.page.get_by_text("Edit and redrive").click()
            _take(desk, f"dashboard-{name}")
    with visitor(opened, api.url, width=PHONE, scheme="dark") as phone:
        phone.log_in(OPERATE, "alice")
        phone.open("/")
        _take(phone, "dashboard-phone")


def _take(person: Visitor, name: str) -> None:
    path = INTO / f"{name}.png"
    person.page.screenshot(path=path, scale="css")
    size = path.stat().st_size
    assert size < LARGEST, f"{path} has {size:,} bytes; show less"
    print(f"{path}: {size:,} bytes")  # noqa: T201 - a program


if __name__ == "__main__":
    if folder := memory_disk.folder():
        os.environ |= memory_disk.settings(folder)
    main()
