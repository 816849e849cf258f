"""Asks the operator's endpoints whether messages are still wanted: one request for each policy and batch."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import structlog

from tarry.amqp.field_tables import Entry, pick
from tarry.contract.message import Request
from tarry.core.decide import Rulebook
from tarry.core.durations import format_duration
from tarry.core.eligibility import (
    LARGEST_ANSWER,
    LONGEST_VALUE,
    MOST_ASKED,
    Answers,
    Eligibility,
    OnError,
    Outage,
    not_wanted,
    question,
)
from tarry.core.policy import ErrorClass, Policy
from tarry.core.urls import split_url

if TYPE_CHECKING:
    import httpx

log = structlog.get_logger()

_TEXTS, _FLOATS = (b"S", b"x"), (b"f", b"d")

ATTEMPTS = 2
"""A connection that the endpoint has just closed is no error: the request is sent again, within the same timeout."""

HEADERS = {"content-type": "application/json", "accept": "application/json", "accept-encoding": "identity"}

IDLE_S = 2.0
"""Seconds that an idle connection is kept: less than servers usually do."""


def header_value(request: Request, key: str) -> str | None:
    """The value of the header of a request, as `value_in`."""
    return value_in(request.delivery.properties.headers or b"", key, request.entries)


def value_in(headers: bytes, key: str, entries: list[Entry] | None = None) -> str | None:
    """The value of the header as text; None if it is absent, empty, too long, or neither text nor a whole number."""
    name = key.encode()
    found = pick(headers, {name}, entries).get(name)
    if found is None:
        return None
    value = found.text() if found.kind in _TEXTS else found.integer() if found.kind not in _FLOATS else None
    text = "" if value is None else str(value)
    return text if 0 < len(text) <= LONGEST_VALUE else None


def to_ask(requests: Sequence[Request], rules: Rulebook) -> list[tuple[Policy, str, int]]:
    """Policy, value and delivery tag of each request that its policy's endpoint is asked about.

    A final error is not: it goes to review in any case. Whether a message is exhausted is known only after the claim;
    then the answer is not used.
    """
    found: list[tuple[Policy, str, int]] = []
    for request in requests:
        failure, policy = request.failure, rules.policy_for(request.failure)
        rule = policy.eligibility if policy is not None else None
        if policy is None or rule is None or rule.key is None or not rule.asks_when_scheduled:
            continue
        error_class = failure.error_class or policy.classify(failure.error_type, failure.error_reason)
        value = header_value(request, rule.key)
        if value is not None and error_class is not ErrorClass.FINAL:
            found.append((policy, value, request.delivery.tag))
    return found


class NoAnswerError(Exception):
    """An endpoint gave no answer, or one that cannot be used. The message is the reason."""


@dataclass(slots=True)
class HttpClient:
    """One client for all endpoints. Created at first use: httpx takes half a second to import."""

    _client: httpx.AsyncClient | None = None

    async def ask(self, url: str, rule: Eligibility, policy: str, values: Sequence[str]) -> dict[str, str]:
        """The values that are not wanted, with their reasons. Raises NoAnswerError."""
        import httpx  # noqa: PLC0415

        if self._client is None:
            limits = httpx.Limits(keepalive_expiry=IDLE_S)
            self._client = httpx.AsyncClient(timeout=None, trust_env=False, limits=limits)  # noqa: S113 - as below
        body = json.dumps(question(policy, rule.key, values)).encode()
        try:
            async with asyncio.timeout(rule.timeout / 1_000):
                return not_wanted(json.loads(await _post(self._client, url, body)), set(values))
        except TimeoutError:
            raise NoAnswerError(f"no answer within {format_duration(rule.timeout)}") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NoAnswerError(str(error) or type(error).__name__) from error
        except (ValueError, RecursionError) as error:
            raise NoAnswerError(f"a bad answer: {error}") from error

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


async def _post(client: httpx.AsyncClient, url: str, body: bytes) -> bytes:
    import httpx  # noqa: PLC0415

    for attempt in range(1, ATTEMPTS + 1):
        try:
            async with client.stream("POST", url, content=body, headers=HEADERS) as response:
                if not response.is_success:
                    raise ValueError(f"status {response.status_code}")
                return await _limited(response)
        except httpx.TransportError:
            if attempt == ATTEMPTS:
                raise
    raise AssertionError


async def _limited(response: httpx.Response) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_raw():
        parts.append(part)
        size += len(part)
        if size > LARGEST_ANSWER:
            raise ValueError(f"it has more than {LARGEST_ANSWER} bytes")
    return b"".join(parts)


@dataclass(slots=True)
class Endpoint:
    """The endpoint of one policy, with what it has answered."""

    policy: str
    rule: Eligibility
    url: str
    answers: Answers
    outage: Outage = field(default_factory=Outage)


Count = Callable[[str, str, int], None]
"""Policy, outcome and number."""


@dataclass(slots=True)
class EligibilityCheck:
    """Answers for a batch of requests. It never fails: without an answer, the policy's `on_error` applies."""

    on_request: Count = lambda *_: None
    """Counts requests: `answered` or `failed`."""
    on_unknown: Count = lambda *_: None
    """Counts messages without an answer: `allow` or `skip`."""
    environment: Mapping[str, str] = field(default_factory=lambda: os.environ)
    clock: Callable[[], float] = time.monotonic
    _client: HttpClient = field(default_factory=HttpClient)
    _endpoints: dict[str, Endpoint] = field(default_factory=dict)

    async def __call__(self, requests: Sequence[Request], rules: Rulebook) -> Mapping[int, str]:
        """Why messages are not wanted any more, by delivery tag; those that are wanted are left out."""
        by_endpoint: dict[str, tuple[Endpoint, dict[str, list[int]]]] = {}
        for policy, value, tag in to_ask(requests, rules):
            endpoint = self._endpoint(policy)
            if endpoint is not None:
                by_endpoint.setdefault(policy.name, (endpoint, {}))[1].setdefault(value, []).append(tag)
        found = await asyncio.gather(*(self._ask(endpoint, tags) for endpoint, tags in by_endpoint.values()))
        return {tag: reason for part in found for tag, reason in part.items()}

    async def about(self, policy: Policy, tags: Mapping[str, list[int]]) -> Mapping[int, str]:
        """The same for due messages of one policy. `tags` are their delivery tags, by the value to ask about."""
        endpoint = self._endpoint(policy)
        return {} if endpoint is None else await self._ask(endpoint, tags)

    def use(self, policies: Iterable[Policy]) -> None:
        """Forgets the endpoints of policies that are gone or have changed: their troubles would never end."""
        rules = {policy.name: policy.eligibility for policy in policies}
        self._endpoints = {name: one for name, one in self._endpoints.items() if rules.get(name) == one.rule}

    @property
    def troubles(self) -> list[str]:
        """Endpoints that do not answer, for health checks."""
        return [
            f"the eligibility endpoint of policy {one.policy} does not answer ({one.outage.error}): on_error = "
            f"{one.rule.on_error} applies"
            for one in self._endpoints.values()
            if one.outage.error is not None
        ]

    async def close(self) -> None:
        await self._client.close()

    def _endpoint(self, policy: Policy) -> Endpoint | None:
        """The policy's endpoint; a new one if the policy has changed. None while its environment variable is empty."""
        rule, known = policy.eligibility, self._endpoints.get(policy.name)
        if known is not None and known.rule == rule:
            return known
        url = rule.endpoint(self.environment) if rule is not None else None
        if rule is None or url is None:
            return None
        made = self._endpoints[policy.name] = Endpoint(policy.name, rule, url, Answers(rule.cache / 1_000))
        return made

    async def _ask(self, endpoint: Endpoint, tags: Mapping[str, list[int]]) -> dict[int, str]:
        """The reasons for one policy, by delivery tag."""
        known, unknown = endpoint.answers.recall(tags, self.clock())
        if unknown and not endpoint.outage.rests(self.clock()):
            known |= await self._request(endpoint, unknown)
        lost = [value for value in unknown if value not in known]
        if lost:
            self.on_unknown(endpoint.policy, endpoint.rule.on_error.value, sum(len(tags[value]) for value in lost))
        if lost and endpoint.rule.on_error is OnError.SKIP:
            why = f"no answer about its eligibility ({endpoint.outage.error}), and on_error is skip"
            known |= dict.fromkeys(lost, why)
        return {tag: reason for value, reason in known.items() if reason is not None for tag in tags[value]}

    async def _request(self, endpoint: Endpoint, values: Sequence[str]) -> dict[str, str | None]:
        """The answers about these values, in as many requests as they need; those without an answer are left out."""
        parts = [values[start : start + MOST_ASKED] for start in range(0, len(values), MOST_ASKED)]
        asked = [self._client.ask(endpoint.url, endpoint.rule, endpoint.policy, part) for part in parts]
        found: dict[str, str | None] = {}
        error: NoAnswerError | None = None
        for part, answer in zip(parts, await asyncio.gather(*asked, return_exceptions=True), strict=True):
            if isinstance(answer, NoAnswerError):
                error = answer
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found |= {value: answer.get(value) for value in part}
            self.on_request(endpoint.policy, "failed" if isinstance(answer, NoAnswerError) else "answered", 1)
        endpoint.answers.remember(found, self.clock())
        self._note(endpoint, error)
        return found

    def _note(self, endpoint: Endpoint, error: NoAnswerError | None) -> None:
        """Logs the beginning and the end of an outage, once each."""
        about = {"policy": endpoint.policy, "endpoint": split_url(endpoint.url).place}
        if error is None and endpoint.outage.answered():
            log.info("eligibility is known again", **about)
        if error is not None and endpoint.outage.failed(str(error), self.clock()):
            log.warning("eligibility is not known", **about, error=str(error), on_error=endpoint.rule.on_error.value)
