"""Eligibility: whether a message is still wanted. An endpoint of the operator is asked about the value of one header.

Pure: what is asked, how an answer is read, how long it is remembered, and how long to wait after an error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from tarry.core.duration_field import Duration
from tarry.core.durations import format_duration
from tarry.core.model import Model
from tarry.core.states import LONGEST_REASON, NOT_WANTED
from tarry.core.urls import BadUrlError, split_url

MOST_ASKED = 500
"""Values in one request; more are asked in several requests at the same time."""

MOST_REMEMBERED = 100_000
"""Answers kept for a policy: some ten megabytes."""

LONGEST_VALUE = 255
"""Characters of a header's value. A message with a longer one is not asked about."""

LONGEST_WAIT = 86_400_000
"""Milliseconds that a message can wait in a check queue for an answer: a day."""

LARGEST_ANSWER = 1 << 20
"""Bytes of an answer; a larger one counts as an error."""

FIRST_REST_S = 1.0
LONGEST_REST_S = 10.0
"""How long nothing is asked after an error, and the longest such time: it doubles while errors go on."""


class OnError(StrEnum):
    """What becomes of a message if there is no answer about it."""

    ALLOW = "allow"
    SKIP = "skip"


class Moment(StrEnum):
    """When it is asked whether a message is still wanted."""

    SCHEDULE = "schedule"
    DUE = "due"


def _as_list(value: object) -> object:
    """One moment may be written without the list."""
    return [value] if isinstance(value, str) else value


def _one_or_list(schema: dict[str, Any]) -> None:
    """The JSON schema of a field that takes one moment, or a list of them."""
    listed = {name: schema.pop(name) for name in ("type", "items", "minItems", "uniqueItems") if name in schema}
    schema["anyOf"] = [listed["items"], listed]
    schema["default"] = Moment.SCHEDULE.value


def checked_url(url: str) -> str:
    """The URL; raises a ValueError that quotes nothing of it."""
    if not url.isprintable() or " " in url:
        raise ValueError(
            "write http://host/path or https://host/path, without spaces, line breaks or control characters"
        )
    try:
        scheme = split_url(url).scheme
    except BadUrlError as error:
        raise ValueError(f"write http://host/path or https://host/path ({error})") from None
    if scheme not in {"http", "https"}:
        raise ValueError("write http://host/path or https://host/path")
    return url


class Eligibility(Model):
    """When it is asked whether a message is still wanted, which endpoint is asked, and about what."""

    at: Annotated[tuple[Moment, ...], BeforeValidator(_as_list)] = Field(
        (Moment.SCHEDULE,),
        min_length=1,
        max_length=2,
        json_schema_extra=_one_or_list,
        description="When: `schedule`, before a retry is scheduled, or `due`, before it returns; or both, as a list. "
        "With `due` the message goes through a check queue, which any consumer can read instead of an endpoint.",
    )
    url: str | None = Field(None, description="The endpoint, as in http://devices.internal/eligible.")
    url_env: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="The environment variable that has the endpoint, instead of `url`. Nothing is asked while it is "
        "empty.",
    )
    key: str | None = Field(
        None,
        min_length=1,
        max_length=LONGEST_VALUE,
        description="The header whose value is sent; needed with an endpoint. A message without this header is not "
        "asked about, and is retried.",
    )
    timeout: Duration = Field(1_000, ge=1, le=30_000, description="How long to wait for an answer; default: 1s.")
    cache: Duration = Field(
        30_000, ge=0, description="How long an answer about a value is used again; default: 30s. 0s: never."
    )
    on_error: OnError = Field(
        OnError.ALLOW,
        description="Without an answer: `allow` retries the message, `skip` skips it. With `due` always `allow`.",
    )
    answer_within: Duration = Field(
        60_000,
        ge=1,
        le=LONGEST_WAIT,
        description="How long a message that is due waits in its check queue for an answer; then it returns. Default: "
        "1m. It is part of the name of the queue.",
    )

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str | None) -> str | None:
        return url if url is None else checked_url(url)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.url is not None and self.url_env is not None:
            raise ValueError("give either `url` or `url_env` (the environment variable that has it), and not both")
        if not self.has_endpoint and self.asks_when_scheduled:
            raise ValueError(
                'give `url` or `url_env` (the environment variable that has it). Only with at = "due" can a consumer '
                "of the check queue decide instead of an endpoint"
            )
        if self.has_endpoint and self.key is None:
            raise ValueError("give `key`, the header whose value is sent to the endpoint")
        if self.key is not None and not self.has_endpoint:
            raise ValueError(
                "`key` is sent to an endpoint, and there is none: give `url` or `url_env`, or remove `key`"
            )
        if len(set(self.at)) < len(self.at):
            raise ValueError('name each moment once: at = ["schedule", "due"]')
        if self.asks_when_due and self.on_error is OnError.SKIP:
            raise ValueError(
                'on_error = "skip" is not possible with at = "due": a message that nobody decides about expires in its '
                'check queue, and returns. Remove on_error, or use at = "schedule"'
            )
        return self

    @property
    def has_endpoint(self) -> bool:
        """Whether an endpoint is named; with `url_env` its variable may still be empty."""
        return self.url is not None or self.url_env is not None

    @property
    def asks_when_scheduled(self) -> bool:
        return Moment.SCHEDULE in self.at

    @property
    def asks_when_due(self) -> bool:
        return Moment.DUE in self.at

    def endpoint(self, environment: Mapping[str, str]) -> str | None:
        """The URL to ask; None without one, or while the environment variable is empty. Raises ValueError for a bad
        one there.
        """
        if self.url_env is None:
            return self.url
        found = environment.get(self.url_env, "").strip()
        return checked_url(found) if found else None

    def describe(self, environment: Mapping[str, str]) -> str:
        """For display; without credentials."""
        url = self.endpoint(environment)
        if not self.has_endpoint:
            return f"the consumer of its check queue decides when it is due; {self._without_decision}"
        if url is None:
            return f"nothing is asked: {self.url_env} is not set"
        return f"{split_url(url).place} is asked about {self.key}{self.moment}; without an answer: {self.on_error}"

    @property
    def moment(self) -> str:
        """For display: when it is asked; empty if only before a retry is scheduled."""
        if not self.asks_when_due:
            return ""
        return ", now and again when it is due" if self.asks_when_scheduled else " when it is due"

    @property
    def _without_decision(self) -> str:
        return f"after {format_duration(self.answer_within)} without a decision it returns"


def question(policy: str, key: str | None, values: Sequence[str]) -> dict[str, Any]:
    """The body of a request."""
    return {"policy": policy, "key": key, "values": list(values)}


def not_wanted(answer: object, asked: Collection[str]) -> dict[str, str]:
    """The values whose messages are not wanted any more, each with its reason. Raises ValueError for a bad answer.

    Values that were not asked about are ignored.
    """
    found = answer.get("skip") if isinstance(answer, dict) else None
    if not isinstance(found, dict):
        raise ValueError('the answer must be a JSON object with an object "skip": {"value": "reason"}')  # noqa: TRY004
    if not all(isinstance(reason, str) for reason in found.values()):
        raise ValueError('every reason in "skip" must be text')
    return {value: _storable(reason) or NOT_WANTED for value, reason in found.items() if value in asked}


def _storable(reason: str) -> str:
    """Shortened, and with half characters escaped: JSON can have them, Postgres takes none."""
    return reason.encode(errors="backslashreplace").decode()[:LONGEST_REASON]


@dataclass(slots=True)
class Answers:
    """The answers about the values of one policy, for a limited time and in limited memory."""

    keep_s: float
    most: int = MOST_REMEMBERED
    _known: dict[str, tuple[float, str | None]] = field(default_factory=dict)
    """By value, the oldest first: until when, and the reason why it is not wanted; None: it is wanted."""

    def recall(self, values: Iterable[str], now_s: float) -> tuple[dict[str, str | None], list[str]]:
        """The known answers, and the values to ask about."""
        known: dict[str, str | None] = {}
        unknown: list[str] = []
        for value in values:
            until, reason = self._known.get(value, (now_s, None))
            if until > now_s:
                known[value] = reason
            else:
                unknown.append(value)
        return known, unknown

    def remember(self, answers: Mapping[str, str | None], now_s: float) -> None:
        if self.keep_s <= 0:
            return
        for value, reason in answers.items():
            self._known.pop(value, None)
            self._known[value] = now_s + self.keep_s, reason
        for oldest in list(islice(self._known, max(0, len(self._known) - self.most))):
            del self._known[oldest]


@dataclass(slots=True)
class Outage:
    """Whether an endpoint is left alone for a moment, so that a broken one does not cost its timeout for each batch."""

    error: str | None = None
    """Why the last request had no answer; None if it had one."""
    _until_s: float = 0.0
    _rest_s: float = 0.0

    def rests(self, now_s: float) -> bool:
        return self.error is not None and now_s < self._until_s

    def failed(self, error: str, now_s: float) -> bool:
        """Returns whether an outage begins."""
        begins = self.error is None
        if begins or now_s >= self._until_s:  # several requests of one moment count once
            self._rest_s = FIRST_REST_S if begins else min(self._rest_s * 2, LONGEST_REST_S)
            self._until_s = now_s + self._rest_s
        self.error = error
        return begins

    def answered(self) -> bool:
        """Returns whether an outage ends."""
        ends = self.error is not None
        self.error = None
        return ends
