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
from tests.support.proxy import Proxy
from tests.support.router import routers
from tests.support.services import Services
from tests.support.spaces import SharedBroker, address_of, with_port
from tests.support.waiting import wait_for

pytestmark = pytest.mark.one_series

SCOPED, SCOPED_ENTRY = new_token("team", Role.OPERATE, ["slow.mine"])
OPEN = frozenset({"/login", "/logout"})
SECRET = b"the card 4111-1111"
SEEN = re.compile(r'name="seen" value="([0-9a-f]{64})"')
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
def closed_clients(api: ApiInstallation) -> Iterator[None]:
    """On a busy machine, the broker closes a connection that no test has used for a while."""
    api.installation.reconnect()
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


def test_a_form_of_an_ended_session_leads_to_the_login_and_back(api: ApiInstallation) -> None:
    operator = Client(api, OPERATE)
    kept = operator.key
    operator.post("/logout")
    page = f"{api.url}/destinations/one?name=slow.mine"
    answer = operator.post("/destinations/pause", {"referer": page}, name="slow.mine", reason="x", form_key=kept)
    assert (answer.status_code, "Nothing was done" in answer.text) == (403, True)
    assert 'href="/login?next=%2Fdestinations%2Fone%3Fname%3Dslow.mine">Log in</a>' in answer.text
    foreign = operator.post("/destinations/pause", {"referer": "https://evil.example/x"}, form_key=kept)
    assert 'href="/login">Log in</a>' in foreign.text


def test_a_form_with_a_mistake_leads_back_to_its_page(api: ApiInstallation) -> None:
    operator = Client(api, OPERATE)
    page = f"{api.url}/destinations/one?name=slow.mine"
    answer = operator.post("/destinations/pause", {"referer": page}, name="slow.mine", lasts="soon")
    assert (answer.status_code, 'href="/destinations/one?name=slow.mine">Open the page again</a>' in answer.text) == (
        422,
        True,
    )


def test_a_filter_with_a_mistake_leads_to_the_page_without_it(api: ApiInstallation) -> None:
    answer = Client(api, OPERATE).get("/retries?due_after=yesterday")
    assert "due_after: should be a time" in answer.text
    assert 'href="/retries">Open the page again</a>' in answer.text


def test_the_overview_says_soon_that_postgres_is_away(api: ApiInstallation) -> None:
    """Whoever waits for each of its numbers in turn would wait for longer than this timeout."""
    dsn = api.installation.dsn
    with Proxy(address_of(dsn)) as wire, routers(api.installation) as start:
        away = {"DATABASE_URL": with_port(dsn, wire.port), "API_TIMEOUT_S": "10"}
        router = start(**away, API_TOKENS=str(OPERATE_ENTRY)).wait_ready()
        operator = Client(ApiInstallation(api.installation, router), OPERATE)
        wire.refuse()
        wire.cut()
        seen = []

        def is_said() -> bool:
            answer = operator.get("/")
            seen.append(answer.status_code)
            return "The audit could not be read" in answer.text

        wait_for(is_said, deadline=90, what="the overview to say it")
        assert set(seen) == {200}
        assert "Postgres does not answer" in operator.get("/").text


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
    verbs = {"/destinations/error": {"verb": "again"}}
    answers = {path: team.post(path, **fields | verbs.get(path, {})).status_code for path in asked}
    assert {path: code for path, code in answers.items() if code not in {403, 404}} == {}
    assert everything(api) == before
    assert team.post("/retries/jobs", **fields).status_code == 404
    assert team.post("/review/discard", queue="slow.theirs", why="x").status_code in {400, 404, 409}
    assert api.rows("select state from retry where message_id = 'their-2'") == [("in_review",)]


def test_wrong_fields_are_refused_with_their_names(api: ApiInstallation) -> None:
    operator = Client(api, OPERATE)
    answer = operator.post("/destinations/pause", name="slow.mine", lasts="soon")
    assert (answer.status_code, "lasts" in answer.text) == (422, True)
    assert operator.post("/review/discard", queue="*").status_code in {400, 422}
    for path in ("/destinations/breaker", "/destinations/error"):
        assert operator.post(path, name="slow.mine", error="e", verb="what", reason="x").status_code == 422, path
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


def test_an_edit_of_a_message_that_has_changed_does_nothing(api: ApiInstallation) -> None:
    api.installation.declare("slow.changed")
    send_to_review(api.installation, "slow.changed", ["changed-1"], body=b"total=1")
    retry = api.installation.retry_of("changed-1")
    one, other = Client(api, OPERATE), Client(api, OPERATE)
    seen = SEEN.findall(one.get(f"/retries/{retry}").text)
    assert len(seen) == 1
    assert other.post(f"/retries/{retry}/redrive", body="total=2", seen=seen[0]).status_code == 303
    api.installation.wait_message("slow.changed")
    send_to_review(api.installation, "slow.changed", ["changed-1"], body=b"total=3")
    again = [state for state in api.installation.states("changed-1") if state[1] == "in_review"]
    (now,) = again
    edits: tuple[dict[str, Any], ...] = ({"body": "total=9"}, {"set_headers": "color=blue"})
    for stale in (seen[0], "", "0" * 64):
        for edit in edits:
            answer = one.post(f"/retries/{now[0]}/redrive", seen=stale, **edit)
            assert (answer.status_code, "has changed since its page was made" in answer.text) == (409, True), edit
    assert api.get(f"/retries/{now[0]}")["state"] == "in_review"
    fresh = SEEN.findall(one.get(f"/retries/{now[0]}").text)[0]
    assert one.post(f"/retries/{now[0]}/redrive", body="total=9", seen=fresh).status_code == 303
    assert api.installation.wait_message("slow.changed")[1] == b"total=9"


def test_a_message_that_is_not_text_is_redriven_with_other_headers(api: ApiInstallation) -> None:
    api.installation.declare("slow.binary")
    send_to_review(api.installation, "slow.binary", ["binary-1"], body=b"\xff\x00", color="red")
    retry = api.installation.retry_of("binary-1")
    operator = Client(api, OPERATE)
    (seen,) = SEEN.findall(operator.get(f"/retries/{retry}").text)
    form = {"set_headers": "color=blue", "seen": seen}
    assert operator.post(f"/retries/{retry}/redrive", body="total=9", **form).status_code == 409
    assert operator.post(f"/retries/{retry}/redrive", **form).status_code == 303
    properties, body = api.installation.wait_message("slow.binary")
    assert ((properties.headers or {})["color"], body) == ("blue", b"\xff\x00")


def test_a_write_off_closes_only_what_its_page_named(api: ApiInstallation) -> None:
    seen, unseen, kept = (api.schedule("slow.lost", f"lost-{number}") for number in range(3))
    operator = Client(api, OPERATE)

    def lose(retry: str, *, with_payload: bool) -> None:
        """As if it had come due long ago: the broker does not have it, as far as the audit can tell."""
        sql = (
            "update retry set due_at = now() - interval '1 hour', expected_at = now() - interval '1 hour',"
            " entered_at = now() - interval '2 hours', tier = 'retry.delay.gone', body = case when %s then body end"
            " where id = %s returning 1"
        )
        assert api.installation.rows(sql, with_payload, retry) == [(1,)]

    lose(seen, with_payload=False)
    page = operator.post("/audit/compare").text
    assert "Write off 1<" in page
    ids = re.findall(r'name="ids" value="([^"]*)"', page)
    assert ids == [seen]
    lose(unseen, with_payload=False)
    lose(kept, with_payload=True)
    nobody: tuple[dict[str, Any], ...] = ({}, {"ids": " "})
    for given in nobody:
        assert operator.post("/audit/write-off", reason="INC-1", **given).status_code in {400, 422}
    assert operator.post("/audit/write-off", ids=ids[0], reason="INC-1").status_code == 303
    assert "Written off: 1." in operator.get("/audit").text
    assert api.get(f"/retries/{seen}")["state"] == "discarded"
    assert api.get(f"/retries/{unseen}")["state"] == "scheduled"
    assert operator.post("/audit/recover").status_code == 303
    assert f"Published again: 1; 1 cannot be published again, such as {unseen}" in operator.get("/audit").text
    api.wait_state(kept, "returned")
    (rest,) = re.findall(r'name="ids" value="([^"]*)"', operator.post("/audit/compare").text)
    assert (rest, operator.post("/audit/write-off", ids=rest, reason="INC-1").status_code) == (unseen, 303)


def test_a_group_that_has_grown_is_counted_anew_and_not_redriven(api: ApiInstallation) -> None:
    api.installation.declare("slow.grown")
    send_to_review(api.installation, "slow.grown", ["grown-1", "grown-2"])
    operator = Client(api, OPERATE)
    page = operator.get("/review/selection?queue=slow.grown").text
    before, expected = (re.findall(rf'name="{name}" value="([^"]+)"', page)[0] for name in ("before", "expected"))
    send_to_review(api.installation, "slow.grown", ["grown-late"])
    # Recorded late, as after a fault of Postgres: with the time at which it came to review.
    api.rows("update retry set updated_at = updated_at - interval '1 hour' where message_id = 'grown-late' returning 1")
    form = {"queue": "slow.grown", "before": before, "why": "INC-1"}
    answer = operator.post("/review/redrive", expected=expected, **form)
    assert answer.status_code == 303, answer.text
    job = operator.get(answer.headers["location"])
    assert ("2 matched when this was asked for, and 3 match now." in job.text, "Start" in job.text) == (True, True)
    assert api.rows("select count(*) from retry where queue = 'slow.grown' and state = 'in_review'") == [(3,)]
    assert operator.post(f"{answer.headers['location']}/abandon").status_code == 303
    assert operator.post("/review/redrive", expected="3", **form).status_code == 303
    assert len(api.installation.take_ids("slow.grown", 3)) == 3


def test_a_group_by_reason_is_discarded_and_no_other(api: ApiInstallation) -> None:
    """The reason of the operator is no condition, whatever it says."""
    send_to_review(api.installation, "slow.by-reason", ["by-reason-1"])
    api.rows("update retry set review_reason = 'no such customer' where message_id = 'by-reason-1' returning 1")
    operator = Client(api, OPERATE)
    page = operator.get("/review/selection?reason=no+such+customer").text
    form = page[page.index('action="/review/discard"') :]
    fields = dict(re.findall(r'name="([^"]+)" value="([^"]*)"', form[: form.index("</form>")]))
    assert {"reason", "why"} < set(fields)
    made = operator.http.post("/review/discard", data=fields | {"why": "e"})
    assert made.status_code == 303, made.text
    wait_for(lambda: "done" in operator.get(made.headers["location"]).text, what="the job")
    api.wait_state(api.installation.retry_of("by-reason-1"), "discarded")
    assert api.rows("select state from retry where message_id = 'their-2'") == [("in_review",)]
    found = api.get("/actions", params={"kind": "review.discard"})["items"][0]["detail"]
    assert (found["reason"], found["filter"]["reason"]) == ("e", "no such customer")


def test_a_destination_shows_the_success_of_each_attempt(api: ApiInstallation) -> None:
    counted = (
        "insert into statistic (span, starts, kind, queue, policy, attempt, scheduled, returned, succeeded, failed)"
        " select 'hour', date_trunc('hour', clock_timestamp(), 'UTC'), 'queue', queue, 'slow', attempt, 10, 10, good,"
        " 10 - good from (values ('slow.rated', 1, 8), ('slow.rated', 2, 3), ('slow.other', 1, 5))"
        " as one (queue, attempt, good) returning 1"
    )
    api.schedule("slow.rated", "rated-1")
    assert len(api.rows(counted)) == 3
    page = Client(api, LOOK).get("/destinations/one?name=slow.rated").text
    assert re.findall(r'data-label="attempt">(\d+)<', page) == ["1", "2"]
    assert re.findall(r"</meter> ([\d.]+) %", page) == ["80.0", "30.0"]


def test_a_job_has_the_buttons_of_its_state(api: ApiInstallation) -> None:
    for number in range(3):
        api.schedule("slow.states", f"states-{number}")
    operator = Client(api, OPERATE)
    made = operator.post(
        "/retries/jobs", kind="cancel", queue="slow.states", state="scheduled", watch="1h", reason="not needed"
    ).headers["location"]

    def buttons() -> list[str]:
        return re.findall(rf'action="{made}/(\w+)"', operator.get(made).text)

    assert buttons() == ["resume", "abandon"]
    assert "states <strong>scheduled</strong>" in operator.get(made).text
    operator.post(f"{made}/resume")
    wait_for(lambda: buttons() == ["stop", "abandon"], what="the job to run")
    operator.post(f"{made}/stop")
    wait_for(lambda: buttons() == ["resume", "abandon"], what="the job to stop")
    operator.post(f"{made}/abandon")
    wait_for(lambda: buttons() == [], what="the job to be done")
    assert operator.post(f"{made}/resume").status_code == 400


def test_a_job_lists_every_message_that_it_did_not_process(api: ApiInstallation) -> None:
    retry = api.schedule("slow.listed", "listed-1")
    operator = Client(api, OPERATE)
    made = operator.post(
        "/retries/jobs", kind="cancel", queue="slow.listed", state="scheduled", reason="not needed"
    ).headers["location"]
    job = made.rpartition("/")[2]
    failed = (
        "insert into review_item (job_id, retry_id, round, state, problem)"
        " select %s, gen_random_uuid(), 1, 'failed', 'made up' from generate_series(1, 149) returning 1"
    )
    assert len(api.installation.rows(failed, job)) == 149
    api.installation.rows("update review_job set total = 150 where id = %s returning 1", job)
    first = operator.get(made).text
    assert (first.count("made up"), "These are the first 100." in first) == (100, True)
    whole = operator.get(f"{made}?problems=all").text
    assert (whole.count("made up"), "These are the first" in whole) == (149, False)
    operator.post(f"{made}/abandon")
    assert api.get(f"/retries/{retry}")["state"] == "scheduled"


@pytest.mark.parametrize("page", ["http://[", "//", "/nothing", "/api/v1/status", "/login", "\\", "/retries/\x00"])
def test_live_numbers_are_only_those_of_pages(api: ApiInstallation, page: str) -> None:
    operator = Client(api, OPERATE)
    answer = operator.http.get("/live", params={"page": page})
    assert answer.status_code in {303, 404, 422}, answer.text
    assert api.router.logged("Traceback") == []


def test_live_numbers_need_a_login(api: ApiInstallation) -> None:
    assert Client(api).get("/live?page=/").status_code == 401


def test_the_topology_page_draws_what_is_in_use_now(api: ApiInstallation) -> None:
    operator, folder = Client(api, OPERATE), api.installation.folder
    assert "~in:9m" not in operator.get("/topology").text
    text = (folder / "tarry.toml").read_text(encoding="utf-8")
    api.installation.write_policies(text.replace('schedule = ["5m"]', 'schedule = ["5m", "9m"]'))
    api.installation.apply()
    wait_for(lambda: "~in:9m" in operator.get("/topology").text, deadline=60, what="the new tier")


def test_the_timeline_has_every_queue_that_a_message_waits_in(api: ApiInstallation) -> None:
    api.installation.request(api.installation.declare("slow.way"), "way-1", retry_after_ms=301_250)
    retry = api.installation.retry_of("way-1")
    api.wait_state(retry, "scheduled")
    shown = Client(api, OPERATE).get(f"/retries/{retry}").text
    assert re.search(r"tier <strong>retry\.[\w.]+ → retry\.ladder\.[\w.]+", shown), shown
