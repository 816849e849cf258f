"""Webhooks in a topology: endpoints that are told of events, and what each of them needs on the broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from tarry.core.duration_field import Duration
from tarry.core.eligibility import checked_url
from tarry.core.model import Model, Whole
from tarry.core.names import WEBHOOKS, Destination, Names, event_patterns
from tarry.core.policy import Glob
from tarry.core.states import Note, State
from tarry.core.urls import split_url

POLICY = "webhooks"
"""The name of the policy of all deliveries that is shipped. A policy of this name in the user's files replaces it."""

POLICY_FILE = Path("webhooks") / "policy.toml"
"""In the shipped topology. It is used only if there are webhooks."""

_STATES = {
    "scheduled": State.SCHEDULED,
    "failed_again": State.SCHEDULED,
    "redriven": State.SCHEDULED,
    "retried_now": State.SCHEDULED,
    "returned": State.RETURNED,
    "succeeded": State.SUCCEEDED,
    "in_review": State.IN_REVIEW,
    "exhausted": State.IN_REVIEW,
    "discarded": State.DISCARDED,
    "cancelled": State.CANCELLED,
    "skipped": State.SKIPPED,
    "held": State.HELD,
    "unroutable": State.UNROUTABLE,
    "overdue": Note.OVERDUE,
    "missing": Note.MISSING,
    "recovered": Note.RECOVERED,
    "stuck": Note.STUCK,
    "duplicate": Note.DUPLICATE,
    "paused": "paused",
    "resumed": "resumed",
    "breaker_opened": "breaker_opened",
    "breaker_closed": "breaker_closed",
    "anomaly_began": "anomaly_began",
    "anomaly_ended": "anomaly_ended",
}
STATES: Mapping[str, str] = {word: str(state) for word, state in _STATES.items()}
"""By the short type of an event, the first word of its routing key."""


def _known(glob: str) -> str:
    """Checks that it matches at least one type."""
    return glob if any(fnmatchcase(word, glob) for word in STATES) else event_word(glob)


def event_word(word: str) -> str:
    """Checks that it is a short type, or a state: every state has a type of the same name."""
    if word in STATES:
        return word
    close = get_close_matches(word, STATES, n=1, cutoff=0.6)
    hint = f"did you mean `{close[0]}`?" if close else f"known types: {', '.join(STATES)}"
    raise ValueError(f"`{word}` is no type of event; {hint}")


EventGlob = Annotated[Glob, AfterValidator(_known)]


class Webhook(Model):
    """An HTTP endpoint that receives events. Deliveries are signed, and repeated until the endpoint accepts them."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9_-]{0,62}$", description="Names its queue; shown in logs, metrics and commands."
    )
    url: str | None = Field(None, description="The endpoint, as in https://example.com/hooks/tarry.")
    url_env: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="The environment variable that has the endpoint, instead of `url`: for a URL that is a secret.",
    )
    secret_env: str = Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="The environment variable that has the signing secret, `whsec_…`; two, separated by a space, while "
        "the secret is changed.",
    )
    events: tuple[EventGlob, ...] = Field(
        min_length=1, description="Types of events, or globs of them: exhausted, in_review, `breaker_*`."
    )
    queues: tuple[Glob, ...] = Field(
        ("*",), min_length=1, description="Only events about these queues, or globs of them; default: all events."
    )
    rate: Whole | None = Field(None, ge=1, le=10_000, description="At most so many deliveries a second.")
    timeout: Duration = Field(
        10_000, ge=1, le=60_000, description="How long a whole delivery may take, name lookup included; default: 10s."
    )
    payload: bool = Field(
        default=False, description="Send the message's body too, in base64, if the audit has stored it."
    )
    allow_private: bool = Field(
        default=False, description="Allow an endpoint at a private or loopback address, such as 10.* or 127.*."
    )

    @field_validator("url")
    @classmethod
    def _is_http(cls, url: str | None) -> str | None:
        return url if url is None else checked_url(url)

    @model_validator(mode="after")
    def _one_endpoint(self) -> Self:
        if (self.url is None) == (self.url_env is None):
            raise ValueError("give either `url` or `url_env` (the environment variable that has it), and not both")
        return self

    def wants(self, word: str, queue: str | None) -> bool:
        """Whether it is to be told of an event of this type about this queue. Never of its own retries, nor of those of
        other webhooks: each failed delivery would cause more.
        """
        if queue is not None and queue.startswith(WEBHOOKS):
            return False
        about = any(glob == "*" or (queue is not None and fnmatchcase(queue, glob)) for glob in self.queues)
        return about and any(fnmatchcase(word, glob) for glob in self.events)

    def place(self, environment: Mapping[str, str]) -> str:
        """The endpoint for display, without credentials and query; if it is a secret, only scheme and host."""
        if self.url is not None:
            return split_url(self.url).place
        found = environment.get(self.url_env or "", "").strip()
        try:
            return split_url(found)._replace(path="/…").place if found else f"({self.url_env} is not set)"
        except ValueError:
            return f"({self.url_env} is not a URL)"

    def binding_keys(self) -> Iterator[str]:
        """The keys that bind its queue to the exchange of events. They match at least what it wants."""
        states = sorted({state for word, state in STATES.items() if any(fnmatchcase(word, one) for one in self.events)})
        globs = ("*",) if "*" in self.queues else self.queues
        for state in states:
            yield from dict.fromkeys(key for glob in globs for key in event_patterns(state, glob))

    def destination(self, names: Names) -> Destination:
        return Destination("queue", names.webhook_queue(self.name))


def place_of_policy(policies: Sequence[Mapping[str, Any]]) -> int | None:
    """Where the shipped policy comes among these: first, but after those whose queue begins as webhooks' queues do.

    None if one of these has its name: that one is used instead.
    """
    if any(one.get("name") == POLICY for one in policies):
        return None
    found = 0
    for place, policy in enumerate(policies):
        glob = _queue_of(policy)
        if glob.startswith(WEBHOOKS):
            found = place + 1
        elif fnmatchcase(WEBHOOKS, glob):
            break  # it matches all of them, so later ones never apply
    return found


def _queue_of(policy: Mapping[str, Any]) -> str:
    match = policy.get("match")
    queue = match.get("queue", "*") if isinstance(match, dict) else "*"
    return queue if isinstance(queue, str) else ""
