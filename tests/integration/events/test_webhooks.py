"""Webhooks: deliveries, their retries, what is refused and how it is seen; commands and the inbound hook."""

from __future__ import annotations

import base64
import json
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from standardwebhooks import WebhookVerificationError

from tarry.core.signature import Secret
from tarry.events.cloudevent import Event
from tests.support.api import TOKENS, ApiInstallation
from tests.support.cli import WIDE, run_cli
from tests.support.events import WITH_EVENTS
from tests.support.installation import Installation, shared_installation
from tests.support.receiver import OTHER_SECRET, SECRET, Receiver, properties_of, receiving, status
from tests.support.router import Router, routers
from tests.support.services import Services
from tests.support.spaces import SharedBroker
from tests.support.waiting import wait_for

HOOKS = ("good", "down", "wrong", "moved", "failing", "large", "slow", "gone", "busy", "odd", "paid", "all")
POLICY = """
[[policy]]
name = "webhooks"
match = { queue = "tarry-webhooks.*" }
schedule = ["300ms"]
max_retries = 200
max_age = "10m"

[[policy]]
name = "guarded"
match = { queue = "guarded.*" }
schedule = ["300ms"]
max_retries = 3
breaker = { of = 10, wait = "1h", longest_wait = "1h" }
"""


def hook(name: str, url: str, more: str = "allow_private = true") -> str:
    queues = '["*"]' if name == "all" else f'["hooked.{name}"]'
    events = '["*"]' if name == "all" else '["exhausted"]'
    return f"""
[[webhook]]
name = "{name}"
url = "{url}"
events = {events}
queues = {queues}
secret_env = "HOOK_SECRET"
timeout = "{"300ms" if name == "slow" else "20s"}"
payload = {"true" if name == "paid" else "false"}
{more}
"""


def topology(port: int) -> str:
    local = [hook(name, f"http://127.0.0.1:{port}/{name}") for name in HOOKS]
    strangers = [
        hook("loopback", f"http://127.0.0.1:{port}/loopback", ""),
        hook("private", "http://10.1.2.3/private", ""),
        hook("metadata", "http://169.254.169.254/latest/meta-data"),
        hook("named", f"http://localhost:{port}/named", ""),
    ]
    return WITH_EVENTS.replace("[[policy]]", f"{POLICY}\n[[policy]]", 1) + "".join([*local, *strangers])


@dataclass
class World:
    """A service with webhooks, and the endpoint that they go to."""

    api: ApiInstallation
    receiver: Receiver

    @property
    def installation(self) -> Installation:
        return self.api.installation

    @property
    def router(self) -> Router:
        return self.api.router

    def publish(
        self, queue: str, *, id_: str | None = None, word: str = "exhausted", state: str = "in_review", **data: Any
    ) -> str:
        """An event on the exchange, as the service publishes it; returns its id."""
        event = Event(
            id=id_ or f"{uuid.uuid4()}/1",
            type=f"tarry.retry.{word}",
            source="/tarry/%2F/retry",
            subject="5f0c8a9e",
            time=datetime.now(UTC),
            sequence="0000001.2.0000000000000000001",
            state=state,
            data={"queue": queue, "policy": "default", **data},
        )
        self.installation.channel.basic_publish(
            "retry.events", event.key, json.dumps(event.data).encode(), properties_of(event)
        )
        return event.id

    def delivered(self, path: str, event_id: str, times: int = 1) -> None:
        wait_for(lambda: self.receiver.ids(path).count(event_id) >= times, deadline=60, what=f"{event_id} at {path}")

    def settled(self, hook: str) -> None:
        """Waits until nothing of this webhook waits in its queue, or for another attempt."""

        def is_so() -> bool:
            (one,) = [one for one in self.api.get("/webhooks") if one["name"] == hook]
            return (one["waiting"], one["retrying"]) == (0, 0)

        wait_for(is_so, deadline=60, what=f"{hook} to have nothing left")

    def reviewed(self, hook: str) -> list[tuple[Any, ...]]:
        """Error types and reasons of its events in review."""
        sql = "select error_type, error_reason from retry where queue = %s and state = 'in_review'"
        return wait_for(
            lambda: self.installation.rows(sql, f"tarry-webhooks.retry.{hook}"), what=f"an event of {hook} in review"
        )

    def wait_logged(self, hook: str, event: str, error: str = "") -> None:
        """A line about the webhook, with an error that begins so."""

        def lines() -> list[str]:
            found = [one.get("error", "") for one in self.router.logged(event) if one.get("webhook") == hook]
            return [one for one in found if one.startswith(error)]

        wait_for(lines, deadline=60, what=f"{event!r} about {hook}: {error}")

    def count(self, hook: str, outcome: str) -> float:
        return self.router.metric("tarry_webhook_deliveries_total", webhook=hook, outcome=outcome)


@pytest.fixture(scope="module")
def world(broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("webhooks")
    with receiving() as receiver:
        (folder / "tarry.toml").write_text(topology(receiver.port), encoding="utf-8")
        with shared_installation(broker, services, folder) as installation, routers(installation) as start:
            router = start(**TOKENS, HOOK_SECRET=SECRET, TARRY_HOOK_SECRET=SECRET).wait_ready()
            with closing(ApiInstallation(installation, router)) as api:
                yield World(api, receiver)


def test_an_event_is_delivered_signed_as_a_cloudevent(world: World) -> None:
    event_id = world.publish("hooked.good", message_id="ORDER-4711", reason="exhausted: 3 retries")
    world.delivered("/good", event_id)
    found = next(one for one in world.receiver.at("/good") if one.id == event_id)

    event = found.verified()
    assert (event["specversion"], event["id"], event["type"]) == ("1.0", event_id, "tarry.retry.exhausted")
    assert event["data"]["message_id"] == "ORDER-4711"
    assert "payload_base64" not in event["data"]
    assert found.headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert found.headers["user-agent"].startswith("tarry/")
    with pytest.raises(WebhookVerificationError):
        found.verified(OTHER_SECRET)


def test_events_that_a_webhook_does_not_want_are_not_delivered(world: World) -> None:
    world.publish("hooked.good", word="in_review")
    world.publish("hooked.good.other")
    world.publish("tarry-webhooks.retry.good")
    last = world.publish("hooked.good")
    world.delivered("/good", last)

    types = {one.verified()["type"] for one in world.receiver.at("/good")}
    queues = {one.verified()["data"]["queue"] for one in world.receiver.at("/good")}
    assert (types, queues) == ({"tarry.retry.exhausted"}, {"hooked.good"})


def test_what_cannot_be_delivered_is_in_review_and_holds_up_nothing(world: World) -> None:
    queue = "tarry-webhooks.retry.odd"
    world.installation.channel.basic_publish("", queue, b"no event")
    world.publish("hooked.odd", id_="größe")
    world.publish("hooked.odd", id_="two\r\nlines")
    event_id = world.publish("hooked.odd", text="\ud800")
    world.delivered("/odd", event_id)

    wait_for(lambda: len(world.reviewed("odd")) == 3, deadline=120, what="three in review")
    assert set(world.reviewed("odd")) == {("webhook.no_event", "it is not an event")}
    assert world.receiver.ids("/odd") == [event_id]


def test_an_endpoint_that_was_down_gets_everything_afterwards(world: World) -> None:
    """With delays of 300 ms in place of hours."""
    world.receiver.answers["/down"] = status(500)
    events = {world.publish("hooked.down") for _ in range(20)}
    wait_for(lambda: len(world.receiver.at("/down")) >= 60, deadline=60, what="each event to fail several times")
    world.receiver.answers.pop("/down")

    def accepted() -> set[str]:
        return {one.id for one in world.receiver.at("/down") if one.status == 204 and one.verified()}

    wait_for(lambda: accepted() == events, deadline=60, what="the endpoint to have all events")
    world.wait_logged("down", "webhook not delivered", "answered 500")
    world.wait_logged("down", "webhook delivers again")
    wait_for(lambda: world.count("down", "delivered") == 20, deadline=120, what="the deliveries to be counted")
    assert world.count("down", "failed") >= 40
    succeeded = "select count(*) from retry where queue = 'tarry-webhooks.retry.down' and state = 'succeeded'"
    wait_for(lambda: world.installation.number(succeeded) == 20, deadline=120, what="the successes to be recorded")


def test_the_retries_of_webhooks_raise_no_deliveries(world: World) -> None:
    """Each failed delivery has events of its own. The stream has them; a webhook that wants all events does not."""
    world.receiver.answers["/failing"] = status(500)
    world.publish("hooked.failing")
    wait_for(lambda: len(world.receiver.at("/failing")) >= 3, deadline=60, what="the delivery to be repeated")
    world.receiver.answers.pop("/failing")
    world.settled("failing")
    world.delivered("/all", world.publish("hooked.afterwards"))

    shown = run_cli(["events", "--queue", "tarry-webhooks.retry.failing", "--json"], world.installation.environment)
    assert "tarry.retry.failed_again" in shown.stdout
    assert not [one for one in world.receiver.received if "tarry-webhooks" in one.verified()["data"].get("queue", "")]


def test_a_redirect_is_a_failure_that_names_it(world: World) -> None:
    elsewhere = f"http://127.0.0.1:{world.receiver.port}/elsewhere"
    world.receiver.answers["/moved"] = status(302, location=elsewhere)
    world.publish("hooked.moved")

    line = f"answered 302, a redirect to {elsewhere}; redirects are not followed"
    world.wait_logged("moved", "webhook not delivered", line)
    world.receiver.answers.pop("/moved")
    world.settled("moved")
    assert world.receiver.at("/elsewhere") == []


def test_a_receiver_with_another_secret_is_visible(world: World) -> None:
    def strict(handler: Any) -> None:
        found = next(one for one in reversed(world.receiver.at("/wrong")))
        try:
            found.verified(OTHER_SECRET)
            status(204)(handler)
        except WebhookVerificationError:
            status(401)(handler)

    world.receiver.answers["/wrong"] = strict
    world.delivered("/wrong", world.publish("hooked.wrong"), times=2)

    world.wait_logged("wrong", "webhook not delivered", "answered 401")
    wait_for(lambda: _shown(world, "wrong")["last_error"] == "answered 401", deadline=120, what="the error to be shown")
    world.receiver.answers.pop("/wrong")
    world.settled("wrong")
    wait_for(lambda: _shown(world, "wrong")["last_success"], deadline=120, what="the success to be shown")


def _shown(world: World, name: str) -> dict[str, Any]:
    return next(one for one in world.api.get("/webhooks") if one["name"] == name)


def test_an_oversized_answer_is_cut_and_counts(world: World) -> None:
    world.receiver.answers["/large"] = status(200, b"x" * 8_000_000)
    event_id = world.publish("hooked.large")
    world.delivered("/large", event_id)
    world.settled("large")

    assert world.receiver.ids("/large") == [event_id]
    assert world.count("large", "delivered") == 1


def test_a_slow_endpoint_is_a_failure(world: World) -> None:
    ended = threading.Event()

    def slow(handler: Any) -> None:
        ended.wait(30)
        status(204)(handler)

    world.receiver.answers["/slow"] = slow
    event_id = world.publish("hooked.slow")
    try:
        world.delivered("/slow", event_id, times=2)
        world.wait_logged("slow", "webhook not delivered", "no answer within 300ms")
    finally:
        ended.set()
        world.receiver.answers.pop("/slow")
    world.settled("slow")


def test_retry_after_is_honoured_and_spends_no_attempt(world: World) -> None:
    world.receiver.answers["/busy"] = status(503, retry_after="1")
    event_id = world.publish("hooked.busy")
    world.delivered("/busy", event_id)
    sql = "select error_class, retry_count, delay_ms from retry where queue = %s and delay_ms is not null"
    ((error_class, retry_count, delay_ms),) = wait_for(
        lambda: world.installation.rows(sql, "tarry-webhooks.retry.busy"), what="the retry"
    )
    world.receiver.answers.pop("/busy")

    assert (error_class, retry_count) == ("rate_limited", 0)
    assert delay_ms >= 1_000
    world.settled("busy")


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("loopback", "127.0.0.1 is a loopback address; allow_private = true of the webhook"),
        ("private", "10.1.2.3 is a private or reserved address; allow_private = true"),
        ("metadata", "169.254.169.254 is link-local, where cloud machines have their credentials; no webhook may go"),
        ("named", "localhost resolves to "),
    ],
)
def test_a_private_address_is_refused_and_the_event_is_in_review(world: World, name: str, line: str) -> None:
    world.publish(f"hooked.{name}")
    ((error_type, reason),) = world.reviewed(name)

    assert error_type == "webhook.refused"
    assert reason.startswith(line)
    world.wait_logged(name, "webhook not delivered", line)
    assert world.receiver.at(f"/{name}") == []
    assert world.count(name, "refused") == 1


def test_an_endpoint_that_is_gone_disables_its_webhook_until_a_test_succeeds(world: World) -> None:
    world.receiver.answers["/gone"] = status(410)
    first = world.publish("hooked.gone")
    wait_for(lambda: _shown(world, "gone")["disabled"], deadline=120, what="the webhook to be disabled")
    second = world.publish("hooked.gone")
    asked = len(world.receiver.at("/gone"))
    assert "webhook gone is disabled (answered 410): its events wait" in world.router.get("/readyz")[1]
    answer = world.api.call("POST", "/webhooks/gone/test").json()
    assert (answer["delivered"], answer["status"], answer["error"]) == (False, 410, "answered 410")
    assert world.receiver.ids("/gone")[asked:] == [answer["event_id"]]

    world.receiver.answers.pop("/gone")
    answer = world.api.call("POST", "/webhooks/gone/test").json()
    assert (answer["delivered"], answer["status"], answer["enabled"]) == (True, 204, True)
    world.delivered("/gone", second)
    world.settled("gone")
    assert world.receiver.ids("/gone").count(first) == 2


def test_a_payload_is_sent_if_it_is_asked_for(world: World) -> None:
    retry = world.api.schedule("slow.hooked", "paid-1", b"the payload")
    event_id = world.publish("hooked.paid", retry_id=retry)
    without = world.publish("hooked.paid", retry_id=str(uuid.uuid4()))
    world.delivered("/paid", event_id)
    world.delivered("/paid", without)
    found = {one.id: one.verified()["data"] for one in world.receiver.at("/paid")}

    assert base64.b64decode(found[event_id]["payload_base64"]) == b"the payload"
    assert "payload_base64" not in found[without]


def test_an_operators_pause_is_delivered(world: World) -> None:
    """From the action log, through the service's own outbox."""
    world.api.schedule("slow.announced", "announced-1")
    assert world.api.call("POST", "/queues/slow.announced/pause", json={"reason": "INC-42"}).status_code == 200

    def found() -> list[Any]:
        events = [one.verified() for one in world.receiver.at("/all")]
        about = [one for one in events if one["data"].get("queue") == "slow.announced"]
        return [one for one in about if one["type"] == "tarry.pause.paused"]

    (event,) = wait_for(found, deadline=60, what="the event of the pause")
    assert event["data"]["reason"] == "INC-42"


def test_events_are_replayed_with_their_ids(world: World) -> None:
    began = datetime.now(UTC) - timedelta(seconds=5)
    event_id = world.publish("hooked.good", reason="to be replayed")
    world.delivered("/good", event_id)
    body = {"since": began.isoformat()}
    answer = wait_for(
        lambda: (found := world.api.call("POST", "/webhooks/good/replay", json=body).json())["events"] and found,
        deadline=60,
        what="the stream to have the event",
    )

    assert answer["events"] >= 1
    world.delivered("/good", event_id, times=2)
    actions = world.api.get("/actions", params={"kind": "webhook_replay"})["items"]
    assert (actions[0]["target"], actions[0]["outcome"]["events"]) == ("good", answer["events"])


def test_a_replay_into_a_queue_that_is_not_applied_publishes_nothing(world: World, tmp_path: Path) -> None:
    (tmp_path / "tarry.toml").write_text(topology(world.receiver.port) + hook("new", "http://127.0.0.1:9/new"), "utf-8")
    settings = world.installation.environment | {"TARRY_TOPOLOGY": str(tmp_path)}
    world.delivered("/good", world.publish("hooked.good"))
    reviews = "select count(*) from retry where state = 'in_review'"
    before = world.installation.number(reviews)
    done = run_cli(["webhooks", "replay", "new", "--since", "1h", "--yes"], settings)

    assert (done.exit_code, done.stdout) == (4, "")
    assert "tarry-webhooks.retry.new is not there, or not bound: run `tarry topology apply`" in done.stderr
    assert "Nothing was replayed" in done.stderr
    world.delivered("/good", world.publish("hooked.good"))
    assert world.installation.number(reviews) == before


def test_commands_list_test_and_replay(world: World) -> None:
    settings = world.installation.environment | {"HOOK_SECRET": SECRET}
    listed = run_cli(["webhooks", "list", "--json"], settings)
    shown = run_cli(["webhooks"], settings | WIDE)
    tested = run_cli(["webhooks", "test", "good"], settings)
    refused = run_cli(["webhooks", "test", "private"], settings)
    replayed = run_cli(["webhooks", "replay", "good", "--since", "1s", "--json"], settings)

    names = [one["name"] for one in json.loads(listed.stdout)]
    assert names[: len(HOOKS) + 4] == [*HOOKS, "loopback", "private", "metadata", "named"]
    assert SECRET not in listed.stdout
    assert "last success" in shown.stdout
    assert f"good: http://127.0.0.1:{world.receiver.port}/good answered 204 in" in tested.stdout
    assert (refused.exit_code, "10.1.2.3 is a private or reserved address" in refused.stdout) == (1, True)
    assert json.loads(replayed.stdout)["name"] == "good"
    unknown = run_cli(["webhooks", "test", "nobody"], settings)
    unset = run_cli(["webhooks", "test", "good"], settings | {"HOOK_SECRET": ""})
    assert (unknown.exit_code, "no webhook called 'nobody'" in unknown.stderr) == (4, True)
    assert (unset.exit_code, "the secret in HOOK_SECRET cannot be used: it is empty" in unset.stderr) == (2, True)


def test_commands_work_through_the_api(world: World) -> None:
    """The service has the secret; the command needs none."""
    settings = {"TARRY_API": world.api.url, "TARRY_TOKEN": world.api.token}
    listed = run_cli(["webhooks", "list", "--json"], settings)
    tested = run_cli(["webhooks", "test", "good", "--json"], settings)
    replayed = run_cli(["webhooks", "replay", "good", "--since", "1s"], settings)

    assert json.loads(listed.stdout)[0]["name"] == "good"
    assert json.loads(tested.stdout)["status"] == 204
    assert "events are in the queue of good" in replayed.stdout


def signed(path: str, *, secret: str = SECRET, id_: str | None = None, at: float | None = None) -> dict[str, Any]:
    """A request to the inbound hook."""
    body = json.dumps({"type": "recovered"}).encode()
    moment = int(at or time.time())
    headers = Secret.parse(secret).sign(id_ or str(uuid.uuid4()), moment, body)
    return {"url": path, "content": body, "headers": headers}


def test_a_signed_hook_resumes_a_queue_with_a_canary(world: World) -> None:
    world.api.schedule("slow.recovered", "recovered-1")
    world.api.call("POST", "/queues/slow.recovered/pause", json={}).raise_for_status()
    request = signed("/hooks/resume/slow.recovered")
    answer = world.api.client.post(**request)
    again = world.api.client.post(**request)

    assert answer.status_code == 200, answer.text
    assert {name: answer.json()[name] for name in ("resumed", "canary")} == {"resumed": True, "canary": True}
    assert again.json() == answer.json()
    actions = world.api.get("/actions", params={"kind": "resume", "target": "slow.recovered"})["items"]
    assert [(one["actor"], one["detail"]["canary"]) for one in actions] == [("hook", True)]
    nothing = world.api.client.post(**signed("/hooks/resume/slow.recovered.too"))
    assert (nothing.status_code, nothing.json()["resumed"]) == (200, False)


def guarded(world: World, name: str) -> str:
    """A queue with a breaker, to which tarry has delivered."""
    queue = world.installation.declare(f"guarded.{name}")
    world.installation.request(queue, "first")
    world.installation.wait_message(queue)
    return queue


@pytest.mark.one_series
def test_a_hook_makes_an_open_breaker_probe_at_once(world: World) -> None:
    queue = guarded(world, "recovered")
    count = "insert into breaker_count (destination, returned, failed) values (%s, 20, 20) returning at"
    world.installation.rows(count, queue)

    def state() -> str:
        return str(next(one["state"] for one in world.api.get("/breakers") if one["queue"] == queue))

    wait_for(lambda: state() == "open", deadline=60, what="the breaker to open")
    world.installation.request(queue, "held")
    answer = world.api.client.post(**signed(f"/hooks/resume/{queue}"))

    assert (answer.status_code, answer.json()["resumed"]) == (200, True), answer.text
    wait_for(lambda: state() == "half_open", deadline=60, what="the probe")
    world.installation.wait_message(queue)
    again = world.api.client.post(**signed(f"/hooks/resume/{queue}"))
    assert (again.status_code, again.json()["resumed"]) == (200, False), again.text
    assert "half-open" in again.json()["detail"]


@pytest.mark.one_series
def test_a_hook_does_not_override_a_breaker_that_a_person_keeps_open(world: World) -> None:
    queue = guarded(world, "kept")
    world.api.call("POST", f"/queues/{queue}/breaker/open", json={"reason": "deploy"}).raise_for_status()
    world.api.call("POST", f"/queues/{queue}/pause", json={}).raise_for_status()
    world.installation.request(queue, "held")
    answer = world.api.client.post(**signed(f"/hooks/resume/{queue}"))

    assert (answer.status_code, answer.json()["resumed"]) == (200, False), answer.text
    (breaker,) = [one for one in world.api.get("/breakers") if one["queue"] == queue]
    assert (breaker["state"], breaker["probe_at"]) == ("open", None)


def test_a_hook_that_is_not_signed_well_is_refused(world: World) -> None:
    path = "/hooks/resume/slow.unsigned"
    refusals: dict[str, httpx.Response] = {
        "no signature matches": world.api.client.post(**signed(path, secret=OTHER_SECRET)),
        "more than 5 minutes": world.api.client.post(**signed(path, at=time.time() - 600)),
        "it needs the headers": world.api.client.post(path, json={}),
    }

    for reason, answer in refusals.items():
        assert (answer.status_code, reason in answer.json()["detail"]) == (401, True), answer.text
        assert any(reason in one["reason"] for one in world.router.logged("hook refused"))
    assert world.api.get("/actions", params={"target": "slow.unsigned"})["items"] == []


def test_a_hook_accepts_one_queue_and_no_other_request_with_its_id(world: World) -> None:
    used = str(uuid.uuid4())
    world.api.client.post(**signed("/hooks/resume/slow.a", id_=used)).raise_for_status()

    assert world.api.client.post(**signed("/hooks/resume/slow.b", id_=used)).status_code == 422
    assert world.api.client.post(**signed("/hooks/resume/slow.*")).status_code == 422
    assert world.api.client.get("/hooks/resume/slow.a").status_code == 405


def test_a_webhook_can_be_added_and_changed_while_the_service_runs(world: World) -> None:
    file = world.installation.folder / "tarry.toml"
    text = file.read_text(encoding="utf-8")
    added = hook("added", f"http://127.0.0.1:{world.receiver.port}/added")
    for path in ("/added", "/changed"):
        file.write_text(text + added.replace("/added", path), encoding="utf-8")
        world.installation.apply()
        world.router.process.send_signal(signal.SIGHUP)
        where = f":{world.receiver.port}{path}"

        def is_used(place: str = where) -> bool:
            return any(one["url"].endswith(place) for one in world.api.get("/webhooks"))

        wait_for(is_used, deadline=120, what=f"{path} to be in use")

    def delivered() -> bool:
        world.publish("hooked.added")
        return bool(world.receiver.at("/changed"))

    wait_for(delivered, deadline=60, what="a delivery to the changed webhook")
