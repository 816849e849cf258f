"""The JSON Schema of events, as published in docs/events.schema.json."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tarry.events.cloudevent import EventType


class _Data(BaseModel):
    """What is not known is left out. Later versions may add fields."""

    model_config = ConfigDict(extra="allow")


class RetryData(_Data):
    """The data of an event about one retry."""

    retry_id: str
    round: int = Field(description="One pass from a failure through a delay to the return. The first is 1.")
    actor: str = Field(description="Who recorded the step: a router, an operator, or `reported` by the consumer.")
    queue: str | None = Field(None, description="The queue in which the message failed, and to which it returns.")
    message_id: str | None = Field(None, description="The message's own id.")
    policy: str | None = None
    owner: str | None = Field(None, description="The user or tenant that the message belongs to.")
    job_type: str | None = None
    priority: str | None = Field(None, description="The `priority` of the retry request.")
    attempt: int | None = Field(None, description="Retries that are spent once the message has returned.")
    max_retries: int | None = None
    error_class: str | None = Field(None, description="`final`, `retryable` or `rate_limited`.")
    error_type: str | None = None
    fingerprint: str | None = Field(None, description="The same for errors that differ only in numbers and ids.")
    reason: str | None = Field(None, description="Why, in a sentence; of an operator's action, the reason given.")
    due_at: datetime | None = Field(None, description="When a scheduled message is due.")
    delay_ms: int | None = None
    drift_ms: int | None = Field(None, description="How late a return was.")


class ActionData(_Data):
    """The data of an event about a pause, a breaker or an anomaly."""

    action_id: str
    kind: str = Field(description="The kind of the action in the action log.")
    target: str = Field(description="What it is about: a queue, a glob of queues, a policy, a job type.")
    actor: str
    queue: str | None = Field(None, description="The target, if it is a queue or a glob of queues.")
    policy: str | None = Field(None, description="The target, if it is a policy.")
    destinations: list[str] | None = Field(None, description="What was paused or resumed at once.")
    reason: str | None = None
    until: datetime | None = Field(None, description="When the pause ends by itself.")
    unfinished: bool | None = Field(None, description="The action was interrupted, and may be done in part.")
    failure_rate: float | None = Field(None, description="Of an anomaly: the share of returns that failed again.")
    usual_rate: float | None = Field(None, description="Of an anomaly: what is usual at this time.")
    returned: int | None = Field(None, description="Returns, of which the failure rate is a share.")
    failed: int | None = Field(None, description="How many of them failed again.")


class EventSchema(BaseModel):
    """A CloudEvent of tarry. On the broker `data` is the body, and each other field a header `cloudEvents:…`."""

    model_config = ConfigDict(extra="allow", title="tarry event")

    specversion: Literal["1.0"]
    id: str = Field(description="The same if the event is delivered again, and only then.")
    source: str = Field(description="The installation: `/tarry/`, its vhost, `/` and its prefix.")
    type: EventType
    subject: str = Field(description="The id of the retry; of another event, what it is about.")
    time: datetime
    sequence: str = Field(description="Orders the events of one subject, when compared as text.")
    state: str = Field(description="The state of the retry after the step: the first word of the routing key.")
    datacontenttype: Literal["application/json"]
    data: RetryData | ActionData


def events_schema_text() -> str:
    """The content of docs/events.schema.json."""
    schema = _plain(EventSchema.model_json_schema())
    top = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps({**top, **schema}, indent=2, ensure_ascii=False) + "\n"


def _plain(part: Any) -> Any:
    """Without titles that only repeat a name, and without null: an unknown value is left out."""
    if isinstance(part, list):
        return [_plain(one) for one in part]
    if not isinstance(part, dict):
        return part
    found = {name: _plain(value) for name, value in part.items() if not _is_noise(name, value)}
    choices = found.get("anyOf")
    if isinstance(choices, list) and {"type": "null"} in choices:
        left = [one for one in choices if one != {"type": "null"}]
        found.pop("anyOf")
        found.pop("default", None)
        found |= left[0] if len(left) == 1 else {"anyOf": left}
    return found


def _is_noise(name: str, value: object) -> bool:
    return (name == "title" and value != "tarry event" and isinstance(value, str)) or (
        name == "default" and value is None
    )
