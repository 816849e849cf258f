"""The policies that attach sets for a queue, and how they are recognized later.

A broker applies only one policy to a queue, so tarry's policy must include the user's keys as well as its own. Its
origin is written into its pattern as a regular expression comment, which the broker ignores and every management UI
shows:

    ^orders$(?#tarry attach; base=team:9f2c61d0a4be; own=dead-letter-exchange,delivery-limit; confirmed)

Nothing else has to be stored: deleting the policy restores the user's own, and the record shows later whether the
user's policy has changed since.

A 3.10 broker that loses the client during a write records the policy but may not apply it, and then treats a write of
the same policy as no change. So each policy is written twice: first as unconfirmed, with a random number that makes it
a change in any case, and, when the broker has answered, as confirmed.

A second policy, `tarry-fallback.orders`, applies if the queue is declared again as another type, for which the first is
void or not intended.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, unquote

from tarry.topology.broker_policies import BrokerPolicy

PREFIX = "tarry."
FALLBACK_PREFIX = "tarry-fallback."
NO_BASE = "-"

CONFIRMED = "confirmed"

_RECORD = re.compile(
    r"\(\?#tarry attach; base=(?P<name>[^:;)]+)(?::(?P<print>[0-9a-f]+))?; own=(?P<own>[^;)]*)"
    r"(?:; (?P<state>[a-z]+(?:=[0-9a-f]+)?))?\)$"
)


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """What tarry's policy was made from: the user's policy at that time, and the keys that are tarry's."""

    base: str | None
    fingerprint: str | None
    own: tuple[str, ...]
    state: str = CONFIRMED
    """With any other value, no answer to its write is known: it may be recorded but not applied."""

    @classmethod
    def of(cls, base: BrokerPolicy | None, own: tuple[str, ...]) -> PolicyRecord:
        if base is None:
            return cls(None, None, own)
        return cls(base.name, fingerprint(base.definition), own)

    @classmethod
    def read(cls, pattern: str) -> PolicyRecord | None:
        found = _RECORD.search(pattern)
        if found is None:
            return None
        base = unquote(found["name"]) if found["print"] else None
        own = tuple(key for key in found["own"].split(",") if key)
        return cls(base, found["print"], own, found["state"] or "")

    @property
    def confirmed(self) -> bool:
        return self.state == CONFIRMED

    def made_from(self, base: BrokerPolicy | None) -> bool:
        """Whether the user's policy still has the same content; its name and priority do not matter."""
        return self.fingerprint == (None if base is None else fingerprint(base.definition))

    def __str__(self) -> str:
        base = NO_BASE if self.base is None else f"{quote(self.base, safe='')}:{self.fingerprint}"
        state = f"; {self.state}" if self.state else ""
        return f"(?#tarry attach; base={base}; own={','.join(self.own)}{state})"


def fingerprint(definition: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()[:12]


def policy_name(queue: str) -> str:
    return f"{PREFIX}{queue}"


def fallback_name(queue: str) -> str:
    return f"{FALLBACK_PREFIX}{queue}"


def pattern_for(queue: str, record: PolicyRecord) -> str:
    return f"^{re.escape(queue)}${record}"


def is_own(policy: BrokerPolicy) -> bool:
    """Whether any installation of tarry has set this policy by attach."""
    return policy.name.startswith((PREFIX, FALLBACK_PREFIX)) and PolicyRecord.read(policy.pattern) is not None


def belongs_to(policy: BrokerPolicy, intake: str) -> bool:
    return is_own(policy) and policy.definition.get("dead-letter-exchange") == intake


def queue_of(policy: BrokerPolicy) -> str:
    return policy.name.removeprefix(PREFIX if policy.name.startswith(PREFIX) else FALLBACK_PREFIX)


def unconfirmed(policy: BrokerPolicy) -> BrokerPolicy:
    """The same policy as it is written first; no two of them are equal."""
    return replace(
        policy, pattern=policy.pattern.replace(f"; {CONFIRMED})", f"; un{CONFIRMED}={secrets.token_hex(4)})")
    )


def apply_to(queue_type: str, version: tuple[int, ...]) -> str:
    """Restricted to the queue's type if the broker supports it: the policy must not apply if the type changes."""
    return f"{queue_type}_queues" if version >= (3, 12) else "queues"


def is_readable(pattern: str) -> bool:
    """Whether Python reads a pattern as the broker does: PCRE supports a little more, such as [[:alpha:]]."""
    if "[:" in pattern:
        return False
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True
