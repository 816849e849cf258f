"""The dashboard in a browser: what somebody on call does, on every page, with one service and one browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from tarry.operations.api_client import segment
from tests.integration.operations.review.reviewing import send_to_review
from tests.support.api import LOOK, OPERATE, TOKENS, ApiInstallation, api_installation
from tests.support.browser import PHONE, Visitor, apart, browser, require_browser, visitor
from tests.support.router import routers
from tests.support.services import Services
from tests.support.spaces import SharedBroker
from tests.support.waiting import wait_for

PAYLOAD = b'{"card": "4111-1111"}'
SCRIPT = "<script>window.struck=1</script><img src=x onerror='window.struck=1'>\"'{{7*7}}"
REVERSED = "invoice\u202efdp.exe"
ESCAPES = "\x1b[2J\x9b31m"
LONG = "w" * 1_000_000

PAGES = (
    *("/", "/destinations", "/retries", "/stuck", "/review", "/review/jobs", "/policies", "/topology", "/audit"),
    *("/actions", "/runbook", "/statistics", "/statistics?since=24h&owner=acme"),
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
    ids = [f"redriven-{number}" for number in range(10)]
    before = api.installation.number("select count(*) from retry where state = 'in_review'")
    review(api, "slow.redriven", ids, error_type="Declined", error_reason="the card was declined")
    operator.page.reload()
    operator.page.locator(".verdict.wrong").wait_for()
    operator.follow("Open the review")  # 1
    operator.page.locator("tr", has_text="slow.redriven").get_by_role("link").first.click()  # 2
    operator.click("Redrive 10")  # 3
    operator.page.locator("#job-state", has_text="done").wait_for()
    assert operator.page.locator("#job-left").inner_text() == "0"
    operator.follow("To the overview")  # 4
    operator.page.locator(".verdict", has_text=re.compile(rf"· {before} in review")).wait_for()
    for one in ids:
        api.wait_state(api.installation.retry_of(one), "returned")
    actions = api.get("/actions", params={"kind": "review.redrive"})["items"]
    assert (actions[0]["actor"], actions[0]["origin"]) == ("ops/alice", "dashboard 127.0.0.1")


def test_the_overview_changes_without_being_reloaded(operator: Visitor, api: ApiInstallation) -> None:
    operator.open("/")
    operator.page.evaluate("window.kept = true")
    operator.page.evaluate("document.querySelector('#live section[aria-labelledby=routers]').kept = true")
    before = api.get("/status")["audit"]["in_review"]
    review(api, "slow.live", ["live-1"])
    operator.page.locator(".verdict", has_text=f"{before + 1} in review").wait_for()
    assert operator.page.evaluate("window.kept") is True
    # What has not changed stays in place, so that no click on it is lost.
    assert operator.page.evaluate("document.querySelector('#live section[aria-labelledby=routers]').kept") is True


@pytest.mark.one_series
def test_old_numbers_say_that_they_are_old(chromium: Browser, api: ApiInstallation) -> None:
    """As long as the service is down."""
    settings = TOKENS | {"DASHBOARD_KEY": "k" * 32}
    with routers(api.installation) as start:
        one = apart(lambda: start(**settings).wait_ready())
        with visitor(chromium, f"http://127.0.0.1:{one.port}") as viewer:
            viewer.log_in(LOOK).open("/")
            old = viewer.page.locator(".old")
            assert old.is_hidden()
            one.kill()
            viewer.wait_text("The service has not answered since")
            apart(lambda: start(**settings, HTTP_PORT=str(one.port)).wait_ready())
            old.wait_for(state="hidden")


@pytest.mark.one_series
def test_a_group_is_redriven_with_edited_headers(operator: Visitor, api: ApiInstallation) -> None:
    api.installation.declare("slow.headers")
    review(api, "slow.headers", ["headers-1", "headers-2"], color="red")
    operator.open("/review/selection?queue=slow.headers")
    operator.page.get_by_text("Edit their headers").click()
    operator.page.get_by_label("Headers to set").fill("color=blue")
    operator.click("Redrive 2")
    operator.page.locator("#job-state", has_text="done").wait_for()
    for _ in range(2):
        returned = wait_for(lambda: api.installation.get("slow.headers"), what="a redriven message")
        assert returned is not None
        assert (returned[0].headers or {})["color"] == "blue"


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
def test_the_keyboard_alone_pauses_a_destination(operator: Visitor, api: ApiInstallation) -> None:
    api.schedule("slow.keyed", "keyed-1")
    operator.open("/destinations/one?name=slow.keyed")
    page, keys = operator.page, operator.page.keyboard
    keys.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    keys.press("Enter")
    for _ in range(50):
        keys.press("Tab")
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        if page.evaluate("document.activeElement.matches(\"form[action='/destinations/pause'] [name='reason']\")"):
            break
    keys.type("INC-43")
    keys.press("Enter")
    operator.wait_text("Paused slow.keyed.")
    assert (
        api.get("/actions", params={"kind": "pause", "target": "slow.keyed"})["items"][0]["detail"]["reason"]
        == "INC-43"
    )
    api.call("POST", "/queues/slow.keyed/resume", json={"canary": False})
    wait_for(lambda: not api.get("/pauses")["pauses"], what="the pause to be over")


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
def test_a_message_is_edited_and_redriven_and_shows_how(operator: Visitor, api: ApiInstallation) -> None:
    api.installation.declare("slow.edited")
    api.installation.declare("slow.elsewhere")
    review(api, "slow.edited", ["edited-1"], body=b'{"total": null,\n "tax": 7}\n', color="red")
    retry = api.installation.retry_of("edited-1")
    operator.open(f"/retries/{retry}")
    operator.page.get_by_text("Edit and redrive").click()
    payload = operator.page.get_by_label("Payload")
    assert payload.input_value() == '{"total": null,\n "tax": 7}\n'
    payload.fill('{"total": 12,\n "tax": 7}\n')
    operator.page.get_by_label("Headers to set").fill("color=blue\nchecked:=true")
    operator.page.get_by_label("To another queue").fill("slow.elsewhere")
    operator.click("Redrive it")
    operator.page.locator("#job-state", has_text="done").wait_for()
    operator.wait_text("slow.elsewhere")
    returned = wait_for(lambda: api.installation.get("slow.elsewhere"), what="the edited message")
    assert returned is not None
    headers = returned[0].headers or {}
    assert (returned[1], headers["color"], headers["checked"]) == (b'{"total": 12,\n "tax": 7}\n', "blue", True)
    operator.open(f"/retries/{retry}")
    operator.page.locator("summary", has_text="by ops/alice, in round").click()
    shown = operator.page.locator("section", has=operator.page.get_by_role("heading", name="Edits")).inner_text()
    assert "headers color, checked; the payload, now 25 bytes" in shown
    assert '"total": null' in shown


@pytest.mark.one_series
def test_all_that_match_are_counted_then_cancelled(operator: Visitor, api: ApiInstallation) -> None:
    ids = [api.schedule("slow.bulk", f"bulk-{number}", owner="bulk") for number in range(3)]
    operator.open("/retries?queue=slow.bulk&state=scheduled")
    operator.page.get_by_text("Act on all that match").click()
    form = operator.page.locator("form[action='/retries/jobs']")
    form.get_by_label("What").select_option("cancel")
    form.get_by_label("How fast").select_option("")
    form.get_by_label("Reason").fill("not needed")
    form.get_by_role("button").click()
    operator.wait_text("These 3 were counted, and nothing was done to them yet.")
    later = api.schedule("slow.bulk", "bulk-later")
    assert {api.get(f"/retries/{one}")["state"] for one in ids} == {"scheduled"}
    operator.click("Start")
    operator.page.locator("#job-state", has_text="done").wait_for()
    assert {api.get(f"/retries/{one}")["state"] for one in ids} == {"cancelled"}
    assert api.get(f"/retries/{later}")["state"] == "scheduled"


@pytest.mark.one_series
def test_a_policy_and_the_intake_are_paused_and_resumed(operator: Visitor, api: ApiInstallation) -> None:
    for scope, name, shown in (("policy", "slow", "policy slow"), ("intake", "", "the intake")):
        operator.open("/destinations")
        operator.page.get_by_text("Pause something else").click()
        form = operator.page.locator("form[action='/pauses/pause']")
        form.get_by_label("What").select_option(scope)
        form.get_by_label("Name").fill(name)
        form.get_by_label("Reason").fill("INC-7")
        form.get_by_role("button").click()
        operator.wait_text(f"Paused {shown}.")
        operator.wait_text("INC-7")
        operator.click(f"Resume {shown}")
        operator.page.locator(".notice", has_text=re.compile("resum", re.IGNORECASE)).wait_for()
    wait_for(lambda: not api.get("/pauses")["pauses"], what="both to be over")
    assert api.get("/pauses")["intake"]["paused"] is False


@pytest.mark.one_series
def test_store_and_broker_are_compared_on_the_page(operator: Visitor) -> None:
    operator.open("/audit")
    operator.click("Compare store and broker now")
    operator.page.locator("#compared").wait_for()
    assert "Nothing is missing" in operator.page.locator("#compared").inner_text()


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
    reason = f"{SCRIPT}{REVERSED}{ESCAPES}{LONG[:3000]}"
    hostile = {"error_type": f"{SCRIPT}{ESCAPES}", "error_reason": reason, "owner": f"{REVERSED}{SCRIPT}"}
    body = f"{SCRIPT}{REVERSED}{ESCAPES}{LONG}".encode()
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
        assert not set("\u202e\x1b\x9b") & set(operator.page.content()), page
        assert not operator.is_too_wide(), page
    operator.open(f"/destinations/one?name={segment(queue)}")
    operator.wait_text(f"Paused by ops ({queue[:20]}")
    form = operator.page.locator("form[action='/destinations/resume']")
    form.get_by_label("With a canary").uncheck()
    form.get_by_role("button").click()
    operator.wait_text("Resuming slow.")
    wait_for(lambda: not api.get("/pauses")["pauses"], what="the pause of exactly this queue to end")
