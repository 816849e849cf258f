"""Retries: the search, and one retry with its timeline, its message and what would happen to it next."""

from __future__ import annotations

import binascii
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict
from starlette.responses import RedirectResponse, Response

from tarry.core.durations import humanise
from tarry.core.json_types import encode_base64
from tarry.core.states import State
from tarry.errors import ControlError, NotFoundError, TarryError
from tarry.operations.explain import Explained
from tarry.operations.lookup import SEARCHED, Order, RetryFilter, StoredPayload
from tarry.store.history import Step, Timeline
from tarry.web.api.parameters import Moment, Owner, QueueName, Text
from tarry.web.api.retries import ActionRequest
from tarry.web.dashboard.rendering import LONGEST, when
from tarry.web.dashboard.visit import Visit, validated

PAGE = 50
SHOWN_BYTES = 16_384
"""Of a payload that is not text."""

FILTERS = ("queue", "policy", "owner", "error", "fingerprint", "message_id", "due_after", "due_before")


class Search(BaseModel):
    """The fields of the search, with the checks of the HTTP API."""

    model_config = ConfigDict(extra="forbid")

    state: State | None = None
    queue: QueueName | None = None
    policy: Text | None = None
    owner: Owner | None = None
    error: Text | None = None
    fingerprint: Text | None = None
    message_id: QueueName | None = None
    due_after: Moment | None = None
    due_before: Moment | None = None
    order: Order | None = None

    def filter(self) -> RetryFilter:
        given: dict[str, Any] = {name: getattr(self, name) for name in FILTERS}
        return RetryFilter(states=[self.state] if self.state else None, **given)


async def show_all(visit: Visit) -> Response:
    called = visit.asked("q")
    if called is not None and (found := await _called(visit, called)) is not None:
        return RedirectResponse(f"/retries/{found}", 303)
    asked = {name: visit.asked(name) for name in ("state", *FILTERS, "order")}
    if called is not None:
        asked["message_id"] = called
    search = validated(Search, asked)
    page = await visit.operations.list_retries(
        search.filter(), order=search.order, limit=PAGE, cursor=visit.asked("cursor")
    )
    return visit.render("retries.html", asked=asked, called=called, page=page, states=list(State), searched=SEARCHED)


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
    return visit.render(
        "retry.html",
        one=timeline,
        steps=_steps(timeline),
        payload=payload,
        body=shown_body(payload.body) if payload else None,
        why_not=why_not,
        explained=explained,
        can_cancel=timeline.state in {State.SCHEDULED, State.HELD},
        can_retry=timeline.state in {State.SCHEDULED, State.HELD, State.IN_REVIEW},
    )


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


def _steps(timeline: Timeline) -> list[ShownStep]:
    found: list[ShownStep] = []
    before: datetime | None = None
    for step in timeline.steps:
        after = None if before is None else (step.at - before).total_seconds() * 1000
        found.append(ShownStep(step, after, dict(_details(step, timeline))))
        before = step.at
    return found


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
