"""Who may see and do what in the dashboard: every page and every form, by introspection."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, ClassVar

import httpx
import pytest

from tarry.operations.api_client import segment
from tarry.settings.tokens import Role, new_token
from tarry.web.dashboard.app import PAGES, SECURITY
from tests.integration.operations.review.reviewing import send_to_review
from tests.integration.web.test_auth_every_route import everything
from tests.support.api import LOOK, OPERATE, OPERATE_ENTRY, TOKENS, ApiInstallation, api_installation
from tests.support.router import routers
from tests.support.services import Services
from tests.support.spaces import SharedBroker
from tests.support.waiting import wait_for

pytestmark = pytest.mark.one_series

SCOPED, SCOPED_ENTRY = new_token("team", Role.OPERATE, ["slow.mine"])
OPEN = frozenset({"/login", "/logout"})
SECRET = b"the card 4111-1111"
KEY = re.compile(r'name="form_key" value="([0-9a-f]{64})"')


@pytest.fixture(scope="module")
def api(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiInstallation]:
    tokens = TOKENS | {"API_TOKENS": f"{TOKENS['API_TOKENS']}, {SCOPED_ENTRY}"}
    with api_installation(broker, services, tmp_path_factory.mktemp("access"), **tokens) as made:
        made.schedule("slow.mine", "mine-1", SECRET, error_type="MyError")
        made.schedule("slow.theirs", "their-1", SECRET, error_type="TheirError", owner="their-owner")
        send_to_review(made.installation, "slow.theirs", ["their-2"], body=SECRET, error_type="TheirError")
        yield made


class Client:
    """A browser without a screen: it keeps cookies, and follows no redirects by itself."""

    opened: ClassVar[list[httpx.Client]] = []

    def __init__(self, api: ApiInstallation, token: str | None = None) -> None:
        self.http = httpx.Client(base_url=api.url, timeout=90)
        self.opened.append(self.http)
        self.key = ""
        if token is not None:
            self.get("/login")
            answer = self.post("/login", token=token)
            assert answer.status_code == 303, answer.text
            self.get("/")

    def get(self, path: str, **headers: str) -> httpx.Response:
        answer = self.http.get(path, headers=headers)
        if found := KEY.search(answer.text):
            self.key = found[1]
        return answer

    def post(self, path: str, headers: dict[str, str] | None = None, **form: str) -> httpx.Response:
        return self.http.post(path, data={"form_key": self.key} | form, headers=headers)


@pytest.fixture(autouse=True)
def closed_clients() -> Iterator[None]:
    yield
    while Client.opened:
        Client.opened.pop().close()


def paths(api: ApiInstallation, *, actions: bool) -> list[str]:
    retry = api.installation.retry_of("their-1")
    fill = {"{retry_id}": retry, "{job_id}": retry}
    found = []
    for page in PAGES:
        if page.is_action == actions and page.path not in OPEN:
            path = page.path
            for name, value in fill.items():
                path = path.replace(name, value)
            found.append(path)
    return found


def test_without_a_login_every_page_leads_to_it(api: ApiInstallation) -> None:
    found = paths(api, actions=False)
    assert len(found) > 8
    for path in found:
        answer = Client(api).get(path)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/login?next={segment(path)}"), path


def test_without_a_login_no_form_does_anything(api: ApiInstallation) -> None:
    guest = Client(api)
    guest.get("/login")
    before = everything(api)
    found = paths(api, actions=True)
    assert len(found) > 8
    assert {guest.post(path, name="slow.theirs", reason="x").status_code for path in found} == {401}
    assert everything(api) == before


def test_who_may_look_can_do_nothing(api: ApiInstallation) -> None:
    viewer = Client(api, LOOK)
    before = everything(api)
    for path in paths(api, actions=True):
        answer = viewer.post(path, name="slow.theirs", reason="x")
        assert (answer.status_code, "forbidden" in answer.text) == (403, True), path
    assert everything(api) == before


def test_a_form_without_the_key_of_the_session_does_nothing(api: ApiInstallation) -> None:
    operator, other = Client(api, OPERATE), Client(api, OPERATE)
    before = everything(api)
    for path in (*paths(api, actions=True), "/login", "/logout"):
        for key in ("", "0" * 64, other.key, "é"):
            answer = operator.post(path, name="slow.theirs", reason="x", token=OPERATE, form_key=key)
            assert answer.status_code == 403, (path, key)
        site = operator.post(path, {"sec-fetch-site": "cross-site"}, name="slow.theirs", reason="x")
        assert site.status_code == 403, path
    assert everything(api) == before
    assert operator.get("/").status_code == 200


def test_every_answer_has_the_headers_that_protect_it(api: ApiInstallation) -> None:
    operator = Client(api, OPERATE)
    kept = [f"/static/{name}" for name in ("dashboard.css", "dashboard.js", "icon.svg")]
    for path in (*paths(api, actions=False), *kept, "/static/nothing", "/retries/x/y"):
        answer = operator.get(path)
        policy = answer.headers["content-security-policy"]
        assert "unsafe" not in policy
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert {name: answer.headers[name] for name in SECURITY} == SECURITY, path
        assert (answer.headers["cache-control"] == "no-store") == (path not in kept), path
        assert answer.status_code in {200, 404}, path


def test_the_cookie_is_for_this_site_and_no_script(api: ApiInstallation) -> None:
    guest = Client(api)
    guest.get("/login")
    plain = guest.post("/login", token=OPERATE).headers["set-cookie"]
    assert "HttpOnly" in plain
    assert "SameSite=strict" in plain
    assert "Secure" not in plain
    behind = guest.get("/login", **{"x-forwarded-proto": "https"})
    assert "location" in behind.headers
    other = Client(api).get("/login", **{"x-forwarded-proto": "https"}).headers["set-cookie"]
    assert "Secure" in other


def test_a_wrong_token_is_refused_and_not_repeated(api: ApiInstallation) -> None:
    guest = Client(api)
    guest.get("/login")
    answer = guest.post("/login", token="tarry_wrong-one")
    assert answer.status_code == 401
    assert "wrong-one" not in answer.text
    assert "wrong-one" not in api.router.log.read_text(encoding="utf-8")
    assert api.router.logged("dashboard login refused")


@pytest.mark.parametrize("wanted", ["https://example.com/", "//example.com", "/\\example.com", "example.com", "/\t/e"])
def test_a_login_leads_to_no_other_site(api: ApiInstallation, wanted: str) -> None:
    guest = Client(api)
    guest.get(f"/login?next={segment(wanted)}")
    assert guest.post("/login", token=OPERATE, next=wanted).headers["location"] == "/"


def test_a_login_leads_to_the_page_that_was_wanted(api: ApiInstallation) -> None:
    guest = Client(api)
    guest.get("/login")
    assert guest.post("/login", token=OPERATE, next="/retries?queue=a").headers["location"] == "/retries?queue=a"


def test_a_session_begins_anew_with_the_login(api: ApiInstallation) -> None:
    guest = Client(api)
    guest.get("/login")
    before = guest.http.cookies["tarry_session"]
    guest.post("/login", token=OPERATE)
    assert guest.http.cookies["tarry_session"] != before
    guest.http.cookies.set("tarry_session", before)
    assert guest.get("/").status_code == 303


def test_a_link_on_another_site_opens_the_page_from_here(api: ApiInstallation) -> None:
    answer = Client(api, OPERATE).get(
        "/retries?queue=a", **{"sec-fetch-mode": "navigate", "sec-fetch-site": "cross-site"}
    )
    assert 'http-equiv="refresh"' in answer.text
    assert 'href="/retries?queue=a"' in answer.text
    assert "mine-1" not in answer.text


def test_a_limited_token_sees_only_its_queues(api: ApiInstallation) -> None:
    team = Client(api, SCOPED)
    more = ("/retries?q=their-1", "/retries?owner=their-owner", "/destinations/one?name=slow.theirs")
    for path in (*paths(api, actions=False), *more, "/review/selection?queue=slow.theirs"):
        answer = team.get(path)
        shown = answer.text.replace(f"/retries/{api.installation.retry_of('their-1')}", "")
        for secret in ("TheirError", "their-2", "4111-1111"):
            assert secret not in shown, (path, secret)
        assert answer.status_code in {200, 403, 404}, path
    assert "mine-1" in team.get("/retries").text


def test_a_limited_token_acts_only_on_its_queues(api: ApiInstallation) -> None:
    team = Client(api, SCOPED)
    before = everything(api)
    fields: dict[str, Any] = {
        "name": "slow.theirs",
        "reason": "x",
        "rate": "5",
        "verb": "open",
        "scope": "policy",
        "lasts": "5m",
    }
    fields |= {"kind": "cancel", "queue": "slow.theirs", "ids": api.installation.retry_of("their-1")}
    ((fields["error"],),) = api.rows("select fingerprint from retry where message_id = 'their-1'")
    jobs = {"/review/redrive", "/review/discard", "/retries/jobs"}  # the action log has those that find nothing
    asked = [path for path in paths(api, actions=True) if path not in jobs]
    answers = {path: team.post(path, **fields).status_code for path in asked}
    assert {path: code for path, code in answers.items() if code not in {403, 404}} == {}
    assert everything(api) == before
    assert team.post("/retries/jobs", **fields).status_code == 404
    assert team.post("/review/discard", queue="slow.theirs", reason="x").status_code in {400, 404, 409}
    assert api.rows("select state from retry where message_id = 'their-2'") == [("in_review",)]


def test_wrong_fields_are_refused_with_their_names(api: ApiInstallation) -> None:
    operator = Client(api, OPERATE)
    answer = operator.post("/destinations/pause", name="slow.mine", lasts="soon")
    assert (answer.status_code, "lasts" in answer.text) == (422, True)
    assert operator.post("/review/discard", queue="*").status_code in {400, 422}
    assert operator.get("/retries?due_after=yesterday").status_code == 422
    assert operator.get("/retries?cursor=nonsense").status_code == 422


def test_a_body_that_is_no_form_is_refused(api: ApiInstallation) -> None:
    operator = Client(api, OPERATE)
    answer = operator.http.post("/destinations/pause", json={"name": "slow.mine"})
    assert answer.status_code == 415
    headers = {"content-type": "application/x-www-form-urlencoded"}
    for body in (b"\xff\xfe=1", b"&".join([b"a=1"] * 1_000)):
        assert operator.http.post("/destinations/pause", content=body, headers=headers).status_code == 422


def test_the_api_and_health_answer_as_before(api: ApiInstallation) -> None:
    for path, kind in (("/api/v1/nothing", "application/problem+json"), ("/nothing", "application/problem+json")):
        assert api.client.get(path).headers["content-type"] == kind
    assert api.client.get("/healthz").json()["status"] == "ok"


def test_the_session_is_no_key_to_the_api(api: ApiInstallation) -> None:
    operator = Client(api, OPERATE)
    assert operator.http.get("/api/v1/status").status_code == 401


def test_without_tokens_the_dashboard_is_open_on_this_machine(local: ApiInstallation) -> None:
    guest = Client(local)
    assert guest.get("/").status_code == 200
    assert "Log out" not in guest.get("/").text
    assert guest.http.get("/", headers={"host": "evil.example"}).status_code == 421
    assert (
        guest.post("/destinations/pause", {"origin": "https://evil.example"}, name="a", reason="x").status_code == 403
    )
    assert guest.post("/destinations/pause", name="a", reason="x", form_key="0" * 64).status_code == 403


def test_without_tokens_a_form_acts_as_local(local: ApiInstallation) -> None:
    guest, retry = Client(local), local.schedule("slow.local", "local-1")
    guest.get(f"/retries/{retry}")
    answer = guest.post(f"/retries/{retry}/cancel", {"origin": local.url}, reason="because")
    assert answer.status_code == 303
    wait_for(lambda: local.get("/actions", params={"kind": "cancel"})["items"], what="the action")
    assert local.get("/actions", params={"kind": "cancel"})["items"][0]["actor"] == "local"


def test_the_dashboard_is_off_with_the_api(api: ApiInstallation) -> None:
    with routers(api.installation) as start:
        other = start(HTTP_API="off").wait_ready()
        assert other.get("/")[0] == 404
        assert other.get("/login")[0] == 404
        assert other.get("/healthz")[0] == 200


def test_services_with_one_key_share_their_sessions(api: ApiInstallation) -> None:
    with routers(api.installation) as start:
        settings = {"DASHBOARD_KEY": "k" * 32, "API_TOKENS": str(OPERATE_ENTRY)}
        one, other = (start(**settings).wait_ready() for _ in range(2))
        person = Client(ApiInstallation(api.installation, one), OPERATE)
        with httpx.Client(base_url=f"http://127.0.0.1:{other.port}", cookies=person.http.cookies, timeout=60) as moved:
            assert moved.get("/").status_code == 200
        stranger = httpx.get(f"{api.url}/", cookies=dict(person.http.cookies), timeout=60)
        assert stranger.status_code == 303
