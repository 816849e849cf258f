"""The dashboard in a browser: what somebody on call does, on every page, with one service and one browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from tarry.operations.api_client import segment
from tests.integration.operations.review.reviewing import send_to_review
from tests.support.api import LOOK, OPERATE, TOKENS, ApiInstallation, api_installation
from tests.support.browser import PHONE, Visitor, apart, browser, require_browser, visitor
from tests.support.services import Services
from tests.support.spaces import SharedBroker
from tests.support.waiting import wait_for

PAYLOAD = b'{"card": "4111-1111"}'
SCRIPT = "<script>window.struck=1</script><img src=x onerror='window.struck=1'>\"'{{7*7}}"
REVERSED = "invoice\u202efdp.exe"
LONG = "w" * 20_000

PAGES = (
    *("/", "/destinations", "/retries", "/review", "/review/jobs", "/policies", "/actions"),
    *(f"/review?by={by}" for by in ("queue", "reason", "owner", "age")),
    "/review/selection?queue=slow.shown",
    "/destinations/one?name=slow.shown",
    "/retries?state=in_review&queue=slow.shown",
)


@pytest.fixture(scope="module")
def api(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiInstallation]:
    """Without a browser, no service is started."""
    require_browser()
    with api_installation(broker, services, tmp_path_factory.mktemp("dashboard"), **TOKENS) as made:
        made.schedule("slow.shown", "SHOWN-1", PAYLOAD, error_type="TimeoutError", owner="acme")
        send_to_review(made.installation, "slow.shown", ["SHOWN-2"], body=PAYLOAD, error_type="Declined")
        yield made
        assert [one["exception"] for one in made.router.logged("api request failed")] == []


@pytest.fixture(scope="module")
def chromium(api: ApiInstallation) -> Iterator[Browser]:
    """After the service, which could not be started while a browser is open."""
    with browser() as opened:
        yield opened


def review(api: ApiInstallation, queue: str, ids: list[str], **about: Any) -> None:
    apart(lambda: send_to_review(api.installation, queue, ids, **about))


@pytest.fixture
def operator(chromium: Browser, api: ApiInstallation) -> Iterator[Visitor]:
    with visitor(chromium, api.url) as opened:
        yield opened.log_in(OPERATE, "alice")
        assert opened.complaints == []
        assert opened.foreign == []


def test_from_red_to_a_redriven_group_in_four_clicks(operator: Visitor, api: ApiInstallation) -> None:
    api.installation.declare("slow.redriven")
    ids = [f"redriven-{number}" for number in range(12)]
    review(api, "slow.redriven", ids, error_type="Declined", error_reason="the card was declined")
    operator.page.reload()
    operator.page.locator(".verdict.wrong").wait_for()
    operator.follow("Open the review")  # 1
    operator.page.locator("tr", has_text="slow.redriven").get_by_role("link").first.click()  # 2
    operator.click("Redrive 12")  # 3
    operator.page.locator("#job-state", has_text="done").wait_for()
    assert operator.page.locator("#job-left").inner_text() == "0"
    operator.follow("To the overview")  # 4
    for one in ids:
        api.wait_state(api.installation.retry_of(one), "returned")
    actions = api.get("/actions", params={"kind": "review.redrive"})["items"]
    assert actions[0]["actor"] == "ops/alice"


def test_the_overview_changes_without_being_reloaded(operator: Visitor, api: ApiInstallation) -> None:
    operator.open("/")
    operator.page.evaluate("window.kept = true")
    before = api.get("/status")["audit"]["in_review"]
    review(api, "slow.live", ["live-1"])
    operator.page.locator(".verdict", has_text=f"{before + 1} in review").wait_for()
    assert operator.page.evaluate("window.kept") is True


def test_pause_and_resume_with_a_canary(operator: Visitor, api: ApiInstallation) -> None:
    api.installation.declare("quick.paused")
    api.installation.request("quick.paused", "paused-0")
    api.wait_state(api.installation.retry_of("paused-0"), "returned")
    operator.open("/destinations")
    operator.follow("quick.paused")
    form = operator.page.locator("form[action='/destinations/pause']")
    form.get_by_label("Reason").fill("INC-42")
    form.get_by_role("button").click()
    operator.wait_text("Paused quick.paused.")
    operator.wait_text("Paused by ops/alice (quick.paused)")
    api.installation.request("quick.paused", "paused-1")
    api.wait_state(api.installation.retry_of("paused-1"), "held")
    form = operator.page.locator("form[action='/destinations/resume']")
    form.get_by_label("Watch each canary for").fill("1s")
    form.get_by_role("button").click()
    operator.wait_text("Resuming quick.paused, with a canary, at 500 a second.")
    api.wait_state(api.installation.retry_of("paused-1"), "returned")
    resumed = api.get("/actions", params={"kind": "resume", "target": "quick.paused"})["items"][0]
    assert (resumed["actor"], resumed["detail"]["canary"]) == ("ops/alice", True)


@pytest.mark.one_series
def test_who_may_look_sees_no_payload_and_no_button(chromium: Browser, api: ApiInstallation) -> None:
    retry = api.installation.retry_of("SHOWN-1")
    with visitor(chromium, api.url) as viewer:
        viewer.log_in(LOOK)
        for page in (*PAGES, f"/retries/{retry}"):
            assert viewer.open(page) == 200
            assert "4111-1111" not in viewer.page.content(), page
            posts = viewer.page.locator("form[method='post']")
            assert [posts.nth(at).get_attribute("action") for at in range(posts.count())] == ["/logout"], page


@pytest.mark.one_series
def test_an_operator_sees_the_message_and_what_would_happen_next(operator: Visitor) -> None:
    operator.open("/retries")
    operator.page.get_by_label("Message id, or retry id").fill("SHOWN-1")
    operator.click("Find")
    operator.page.get_by_role("heading", name="SHOWN-1").wait_for()
    assert '"card": "4111-1111"' in operator.text
    assert "retry.delay.5m" in operator.text
    assert operator.page.get_by_role("heading", name="If it fails again").count() == 1


@pytest.mark.one_series
def test_log_out_ends_the_session_even_for_a_kept_cookie(operator: Visitor) -> None:
    kept = operator.page.context.cookies()
    operator.click("Log out")
    operator.page.get_by_role("button", name="Log in").wait_for()
    operator.page.context.add_cookies(
        [{"name": str(one["name"]), "value": str(one["value"]), "url": operator.url} for one in kept]
    )
    operator.open("/retries")
    operator.page.get_by_role("button", name="Log in").wait_for()


@pytest.mark.one_series
def test_everything_works_without_scripts(chromium: Browser, api: ApiInstallation) -> None:
    retry = api.schedule("slow.plain", "plain-1")
    with visitor(chromium, api.url, scripts=False) as plain:
        plain.log_in(OPERATE)
        plain.open(f"/retries/{retry}")
        plain.page.locator("form[action$='/cancel']").get_by_label("Reason").fill("not needed")
        plain.click("Cancel this retry")
        plain.wait_text("Cancel: ")
    found = api.get("/actions", params={"kind": "cancel", "target": retry})["items"]
    assert [one["detail"]["reason"] for one in found] == ["not needed"]


@pytest.mark.one_series
@pytest.mark.parametrize(("width", "scheme"), [(PHONE, "light"), (1400, "dark")])
def test_no_page_has_a_barrier_or_is_too_wide(chromium: Browser, api: ApiInstallation, width: int, scheme: str) -> None:
    retry = api.installation.retry_of("SHOWN-1")
    with visitor(chromium, api.url, width=width, scheme=scheme) as guest:
        guest.open("/login")
        assert guest.barriers() == []
        guest.log_in(OPERATE)
        for page in (*PAGES, f"/retries/{retry}", "/retries/ffff-unknown"):
            assert guest.open(page) == (404 if "unknown" in page else 200), page
            assert guest.barriers() == [], page
            assert not guest.is_too_wide(), page


@pytest.mark.one_series
def test_a_barrier_would_be_found(chromium: Browser, api: ApiInstallation) -> None:
    with visitor(chromium, api.url) as guest:
        guest.open("/login")
        guest.page.evaluate("document.querySelector('main').innerHTML = '<img src=\"/static/icon.svg\">'")
        assert any(one.startswith("image-alt") for one in guest.barriers())


@pytest.mark.one_series
def test_hostile_text_in_every_field_stays_inert(operator: Visitor, api: ApiInstallation) -> None:
    queue = f"slow.{SCRIPT[:100]}{REVERSED}"
    hostile = {"error_type": SCRIPT, "error_reason": f"{SCRIPT}{REVERSED}{LONG[:3000]}", "owner": f"{REVERSED}{SCRIPT}"}
    body = f"{SCRIPT}{REVERSED}{LONG}".encode()
    api.installation.declare(queue)
    waiting = api.schedule(queue, f"{SCRIPT}{REVERSED}", body, **hostile, **{f"x-{SCRIPT}": SCRIPT})
    review(api, queue, [f"{REVERSED}{SCRIPT}"], body=body, **hostile)
    reviewed = api.installation.retry_of(f"{REVERSED}{SCRIPT}")
    api.call("POST", f"/queues/{segment(queue)}/pause", json={"reason": SCRIPT})
    wait_for(lambda: api.get("/pauses")["paused_destinations"], what="the pause")
    operator.page.set_viewport_size({"width": PHONE, "height": 900})
    for page in (*PAGES, f"/retries/{waiting}", f"/retries/{reviewed}", f"/retries?q={segment(SCRIPT)}"):
        assert operator.open(page) == 200, page
        assert operator.page.evaluate("window.struck") is None, page
        assert "\u202e" not in operator.page.content(), page
        assert not operator.is_too_wide(), page
    operator.open(f"/destinations/one?name={segment(queue)}")
    operator.wait_text(f"Paused by ops ({queue[:20]}")
    form = operator.page.locator("form[action='/destinations/resume']")
    form.get_by_label("With a canary").uncheck()
    form.get_by_role("button").click()
    operator.wait_text("Resuming slow.")
    wait_for(lambda: not api.get("/pauses")["pauses"], what="the pause of exactly this queue to end")
