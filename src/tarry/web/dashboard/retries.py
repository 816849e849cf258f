"""Retries: the search, and one retry with its timeline, its message and what would happen to it next."""

from __future__ import annotations

import binascii
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel
from starlette.responses import RedirectResponse, Response

from tarry.amqp.delivery import Delivery
from tarry.amqp.field_tables import BadTableError
from tarry.amqp.properties import Properties
from tarry.core.durations import humanise, parse_duration
from tarry.core.json_types import encode_base64
from tarry.core.ladder import itinerary
from tarry.core.printable import printable
from tarry.core.states import State
from tarry.errors import Code, ControlError, DelayTooLongError, NotFoundError, TarryError
from tarry.operations.explain import Explained, queues_of
from tarry.operations.lookup import SEARCHED, Order, RetryFilter, StoredPayload
from tarry.operations.review.browse import Filter
from tarry.operations.review.jobs import DIVERTING, JobSpec, Kind
from tarry.operations.review.redrive import RedriveOptions, edits_from, payload_inside
from tarry.store.history import Step, Timeline
from tarry.topology.model import Topology
from tarry.topology.partial import NamesOnly
from tarry.web.api.parameters import QueueName
from tarry.web.api.problems import ProblemError
from tarry.web.api.retries import ActionRequest, WhichRetries
from tarry.web.api.review import NewJob
from tarry.web.dashboard.rendering import LONGEST, when
from tarry.web.dashboard.visit import Visit, validated

PAGE = 50
EDITABLE = 32 << 10
"""The most bytes of a payload that can be edited on a page."""

SHOWN_BYTES = 16_384
"""Of a payload that is not text."""

FILTERS = ("queue", "policy", "owner", "error", "fingerprint", "message_id", "due_after", "due_before")


class Search(WhichRetries):
    """The fields of the search, with the checks of the HTTP API."""

    order: Order | None = None

    def filter(self) -> RetryFilter:
        return RetryFilter(**self.model_dump(exclude={"order"}))


def _search(asked: Mapping[str, str | None]) -> Search:
    state = asked["state"]
    return validated(Search, {**asked, "state": None, "states": [state] if state else None})


KINDS: dict[Kind, str] = {
    "retry_now": "Retry now: those that wait",
    "cancel": "Cancel: those that wait",
    "redrive": "Redrive: those in review",
    "discard": "Discard: those in review",
}


def _kinds(state: str | None) -> dict[Kind, str]:
    """What can be done to retries in this state."""
    if state in {State.SCHEDULED, State.HELD}:
        return {kind: text for kind, text in KINDS.items() if kind in DIVERTING}
    if state == State.IN_REVIEW:
        return {kind: text for kind, text in KINDS.items() if kind not in DIVERTING}
    return {} if state else KINDS


async def show_all(visit: Visit) -> Response:
    called = visit.asked("q")
    if called is not None and (found := await _called(visit, called)) is not None:
        return RedirectResponse(f"/retries/{found}", 303)
    asked = {name: visit.asked(name) for name in ("state", *FILTERS, "order")}
    if called is not None:
        asked["message_id"] = called
    search = _search(asked)
    page = await visit.operations.list_retries(
        search.filter(), order=search.order, limit=PAGE, cursor=visit.asked("cursor")
    )
    has_filter = bool(search.filter().conditions())
    return visit.render(
        "retries.html",
        asked=asked,
        called=called,
        page=page,
        states=list(State),
        searched=SEARCHED,
        kinds=_kinds(asked["state"]) if has_filter and page.items else {},
    )


class Bulk(NewJob):
    """What to do to all that match."""

    retries: WhichRetries


async def prepare(visit: Visit) -> Response:
    """Freezes and counts all that match. Nothing is done to them until the job is started, on its page."""
    asked = {name: visit.form.get(name) or None for name in ("state", *FILTERS)}
    wanted = _search(asked)
    if not wanted.filter().conditions():
        raise ProblemError(Code.INVALID_REQUEST, "Filter first: this would act on every retry there is.")
    about = {
        "kind": visit.given("kind"),
        "rate": visit.given("rate"),
        "watch": visit.given("watch"),
        "reason": visit.given("reason"),
        "retries": wanted.model_dump(exclude={"order"}, exclude_none=True),
        "prepared": True,
    }
    job = await visit.operations.create_job(validated(Bulk, about).spec(None))
    return RedirectResponse(f"/review/jobs/{job.id}", 303)


async def _called(visit: Visit, called: str) -> str | None:
    """The id of the only retry that is called so; None if there are several, or none."""
    by_message = await visit.operations.list_retries(RetryFilter(message_id=called), limit=2)
    if by_message.items:
        return by_message.items[0].retry_id if len(by_message.items) == 1 else None
    try:
        return (await visit.operations.show_retry(called)).retry_id
    except NotFoundError:
        return None


async def show_one(visit: Visit) -> Response:
    timeline = await visit.operations.show_retry(_id(visit))
    payload, why_not = await _payload(visit, timeline) if visit.may_act else (None, None)
    explained = await _explained(visit, timeline, payload) if payload is not None else None
    edits = await visit.operations.list_edits(timeline.retry_id) if visit.may_act else []
    editable = await _editable(visit, timeline, payload)
    return visit.render(
        "retry.html",
        one=timeline,
        steps=_steps(timeline, visit.shared.files),
        payload=payload,
        body=shown_body(payload.body) if payload else None,
        why_not=why_not,
        explained=explained,
        can_cancel=timeline.state in {State.SCHEDULED, State.HELD},
        can_retry=timeline.state in {State.SCHEDULED, State.HELD, State.IN_REVIEW},
        can_edit=visit.may_act and timeline.state == State.IN_REVIEW,
        editable=editable,
        seen=_seen(visit, timeline, editable),
        largest=EDITABLE,
        edits=[(one, shown_body(one.body)) for one in edits],
    )


async def _editable(visit: Visit, timeline: Timeline, payload: StoredPayload | None) -> str | None:
    """The payload as text to edit; None if it is not kept, not text, too long, or has characters that would not be
    seen, or if the message is not in review.
    """
    if payload is None or timeline.state != State.IN_REVIEW:
        return None
    found = await visit.operations.review_payload(timeline.retry_id)
    try:
        delivery = Delivery(found.body, Properties.decode(found.wire_properties), "", "")
        text = payload_inside(delivery).decode()
    except (ValueError, BadTableError):
        return None
    return text if len(text.encode()) <= EDITABLE and printable(text, lines=True) == text else None


async def redrive_edited(visit: Visit) -> Response:
    """A job for this message alone. What was not changed in the form is not an edit."""
    retry_id = _id(visit)
    body = await _edited_body(visit, retry_id)
    edits = edits_from(visit.lines("set_headers"), visit.lines("drop_headers"), body)
    options = RedriveOptions(
        visit.given("attempts") != "keep", validated(Target, {"to": visit.given("to")}).to, 0, edits
    )
    ids = await visit.operations.review_ids([retry_id])
    job = await visit.operations.create_job(JobSpec("redrive", Filter(ids=ids), options, reason=visit.given("reason")))
    return RedirectResponse(f"/review/jobs/{job.id}", 303)


class Target(BaseModel):
    """Another queue than the one in which it failed."""

    to: QueueName | None = None


async def _edited_body(visit: Visit, retry_id: str) -> bytes | None:
    """The new payload, None if it was not changed. Refuses the form of a message that is another one by now.

    Browsers send line ends as CR LF; a text with such line ends cannot be edited, so they were LF.
    """
    timeline = await visit.operations.show_retry(retry_id)
    payload, _ = await _payload(visit, timeline)
    before = await _editable(visit, timeline, payload)
    given = visit.form.get("body")
    if visit.form.get("seen") != _seen(visit, timeline, before) or (given is not None and before is None):
        raise ProblemError(
            Code.CANNOT_REDRIVE,
            "This message has changed since its page was made: somebody redrove it, or it failed again. Nothing was "
            "done. Open its page again, and repeat the edit.",
        )
    if given is None:
        return None
    after = given.replace("\r\n", "\n")
    return None if after == before else after.encode()


def _seen(visit: Visit, timeline: Timeline, payload: str | None) -> str:
    """Stands for the message that a page shows, so that an edit is not applied to another one. `payload` is None if it
    cannot be edited.
    """
    return visit.renderer.sessions.digest(json.dumps([timeline.retry_id, timeline.round, timeline.state, payload]))


async def cancel(visit: Visit) -> Response:
    called = _id(visit)
    wanted = validated(ActionRequest, {"reason": visit.given("reason")})
    done = await visit.operations.cancel(called, reason=wanted.reason)
    return visit.done(f"Cancel: {done.answer}.", f"/retries/{called}")


async def retry_now(visit: Visit) -> Response:
    called = _id(visit)
    wanted = validated(ActionRequest, {"reason": visit.given("reason")})
    done = await visit.operations.retry_now(called, reason=wanted.reason)
    return visit.done(f"Retry now: {done.answer}.", f"/retries/{called}")


def _id(visit: Visit) -> str:
    return str(visit.request.path_params["retry_id"])


@dataclass(frozen=True, slots=True)
class ShownStep:
    """One row of the timeline."""

    step: Step
    after_ms: float | None
    """Since the step before it."""
    detail: Mapping[str, Any]


def _steps(timeline: Timeline, files: Topology | NamesOnly) -> list[ShownStep]:
    found: list[ShownStep] = []
    before: datetime | None = None
    for step in timeline.steps:
        after = None if before is None else (step.at - before).total_seconds() * 1000
        detail = dict(_details(step, timeline))
        if way := itinerary_of(step.detail or {}, files):
            detail["tier"] = " → ".join(way)
        found.append(ShownStep(step, after, detail))
        before = step.at
    return found


def itinerary_of(detail: Mapping[str, Any], files: Topology | NamesOnly) -> list[str]:
    """Every queue that the message waited in, of which the history has the first and the delay. Empty if the topology
    is another one by now.
    """
    tier, delay = detail.get("tier"), detail.get("delay_ms")
    if not isinstance(files, Topology) or not isinstance(tier, str) or not isinstance(delay, int):
        return []
    names, rules = files.broker_names, files.rules
    parsed = names.parse(tier)
    base = parse_duration(parsed.delay) if parsed and parsed.kind == "tier" and parsed.delay else None
    try:
        lane = parsed.lane if parsed else None
        way = itinerary(rules.ladder, delay, rules.tiers_of(lane), base, lane)
        found = list(queues_of(way, names, rules.ladder))
    except DelayTooLongError:
        return []
    return found if found[:1] == [tier] else []


def _details(step: Step, timeline: Timeline) -> Iterator[tuple[str, object]]:
    """What the page does not show above the timeline already, with durations and times for people."""
    known = {timeline.policy, timeline.owner, timeline.fingerprint, timeline.error_class}
    for name, value in (step.detail or {}).items():
        if name == "drift_ms" or (name in {"policy", "owner", "fingerprint", "class"} and value in known):
            continue
        if name == "due_ms" and isinstance(value, int):
            yield "due", when(datetime.fromtimestamp(value / 1000, UTC))
        elif name.endswith("_ms") and isinstance(value, int):
            yield name.removesuffix("_ms"), humanise(value)
        else:
            yield name, str(value)


async def _payload(visit: Visit, timeline: Timeline) -> tuple[StoredPayload | None, str | None]:
    """The message, or why there is none."""
    try:
        return await visit.operations.show_payload(timeline.retry_id), None
    except ControlError as error:
        return None, str(error)


async def _explained(visit: Visit, timeline: Timeline, payload: StoredPayload) -> Explained | None:
    """What the next failure in its queue would lead to; None if that cannot be said."""
    headers = {name: value for name, value in payload.headers.items() if value is not None}
    message = {
        "properties": {**payload.properties, "headers": headers},
        "payload": encode_base64(payload.body),
        "payload_encoding": "base64",
        "routing_key": timeline.queue,
    }
    try:
        return (await visit.operations.explain([message], queue=timeline.queue))[0]
    except TarryError:
        return None


@dataclass(frozen=True, slots=True)
class ShownBody:
    """A payload as a page shows it."""

    kind: str
    """`JSON`, `text` or `binary`."""
    text: str


def shown_body(body: bytes) -> ShownBody:
    """JSON is indented; what is not text is shown as hexadecimal numbers."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return ShownBody("binary", _hex(body))
    try:
        return ShownBody("JSON", _indented(json.loads(text)))
    except (ValueError, RecursionError):
        return ShownBody("text", text)


def _indented(value: object) -> str:
    """Not more of it than a page shows: a deep value becomes hundreds of times as long, and the router waits for it."""
    parts: list[str] = []
    size = 0
    for part in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(value):
        parts.append(part)
        size += len(part)
        if size > LONGEST:
            return "".join(parts)[: LONGEST - 2] + "\n…"
    return "".join(parts)


def _hex(body: bytes) -> str:
    """Sixteen bytes on a line: offset, numbers, and the characters among them."""
    shown = body[:SHOWN_BYTES]
    rows = [shown[start : start + 16] for start in range(0, len(shown), 16)]
    text = "\n".join(
        f"{number * 16:06x}  {binascii.hexlify(row, ' ').decode():<47}  "
        + "".join(chr(one) if 32 <= one < 127 else "." for one in row)  # noqa: PLR2004 - printable ASCII
        for number, row in enumerate(rows)
    )
    return text if len(body) <= SHOWN_BYTES else f"{text}\n… {len(body):,} bytes in all"
