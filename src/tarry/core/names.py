"""All names of tarry's queues and exchanges, and all of its routing keys: built here, and recognised here.

An installation's names share a prefix (default `retry.`), so two installations can share a vhost. Routing keys need no
prefix: only tarry's exchanges route by them. Keys on messages that return through a user's exchange are single words
without a dot that start with `~`: no topic binding there matches one unless it consists of wildcards only.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

from tarry.core.durations import format_duration

RESERVED = "~"
"""First character of all of tarry's routing keys; a request whose routing key starts with it goes to review."""

LONGEST_NAME = 255
"""Bytes in an AMQP short string: the limit for queue names and binding keys."""

LONGEST_RELAYED_NAME = 240
"""Bytes. A longer destination name leaves no room for the name of its relay queue."""

ENTER_LADDER = "~in:ladder"
LANE = r"[a-z0-9][a-z0-9_-]{0,30}"
"""A lane's name: one word without a dot."""

LANE_SIGN = "~"
"""Before a lane's name in the name of a queue or exchange, directly after `delay`, `ladder` or `relay`. Names of other
queues have a dot there, and what follows the dot is a delay or a destination.
"""

NO_TIER = "~nowhere"
"""A routing key that no tier has."""
LAYOVER = "~layover"
"""The key of a message whose delay is longer than its tiers hold: it leads to the router, not to its destination."""

LONGEST_GATE_WORD = 120
"""Bytes. The key of a policy or job type with a longer name contains a hash of it: a held queue is named by the key."""

_ID = f"{RESERVED}id:"
_CHECK = f"{RESERVED}check:"
_DESTINATION = (f"{RESERVED}to:", f"{RESERVED}to#", f"{RESERVED}via:", f"{RESERVED}via#")

DEFAULT_PREFIX = "retry."
DEFAULT_REVIEW_QUEUE = "manual-review.pending"

ID_HEADER = "tarry-id"
ROUND_HEADER = "tarry-round"
"""This header and `ID_HEADER` identify a message that the broker returns to the publisher."""


def enter_key(tier_ms: int, lane: str | None = None) -> str:
    """The key that puts a message into a policy tier."""
    return f"~in:{format_duration(tier_ms)}" if lane is None else f"~in~{lane}:{format_duration(tier_ms)}"


def enter_ladder_key(lane: str | None = None) -> str:
    """The key that puts a message into the ladder, or into that of a lane."""
    return ENTER_LADDER if lane is None else f"~in~{lane}:ladder"


def digit_key(level: int, digit: int) -> str:
    """The key for the number of steps that a message waits at one level of the ladder."""
    return f"~{level}:{digit}"


def skip_key(level: int, to: int | None) -> str:
    """The key that routes from one level of the ladder past the levels without a wait; `to=None` leaves the ladder."""
    return f"~{level}>{'end' if to is None else to}"


def id_key(retry_id: str, round_: int | str) -> str:
    """The key that a cancellation binds; `round_` may be a placeholder for display."""
    return f"{_ID}{retry_id}:{round_}"


def is_id_key(key: str) -> bool:
    return key.startswith(_ID)


def is_destination_key(key: str) -> bool:
    """Whether it is the key of a `Destination`."""
    return key.startswith(_DESTINATION)


class Destination(NamedTuple):
    """Where a message returns: to the queue it failed in, or through the exchange it was published to."""

    kind: Literal["queue", "exchange"]
    name: str

    @property
    def key(self) -> str:
        """`~to:orders`, `~via:events`: one bindable word. Dots in exchange names are encoded, and long names hashed."""
        return _way_home(self.kind, self.name)

    @property
    def can_have_relay(self) -> bool:
        return len(self.name.encode()) <= LONGEST_RELAYED_NAME

    @property
    def label(self) -> str:
        """The last part of the names of the relay queue and the held queue: `orders`, `exchange:events`."""
        return self.name if self.kind == "queue" else f"{_EXCHANGE_LABEL}{self.name}"

    @classmethod
    def of_label(cls, label: str) -> Destination:
        """The reverse of `label`. A queue whose own name starts with `exchange:` looks like an exchange."""
        if label.startswith(_EXCHANGE_LABEL):
            return cls("exchange", label.removeprefix(_EXCHANGE_LABEL))
        return cls("queue", label)


_EXCHANGE_LABEL = "exchange:"


@lru_cache(maxsize=32_768)
def _way_home(kind: str, name: str) -> str:
    verb = "to" if kind == "queue" else "via"
    word = _one_word(name) if kind == "exchange" else name
    key = f"{RESERVED}{verb}:{word}"
    if len(key.encode()) > LONGEST_NAME:
        return f"{RESERVED}{verb}#{hashlib.sha256(name.encode()).hexdigest()}"
    return key


def event_key(state: str, policy: str | None, queue: str | None) -> str:
    """The routing key of an event: `scheduled.invoices.orders.eu`. A queue keeps its dots and a policy does not, so
    the queue begins with the third word. In a key that would be too long, a hash replaces the queue.
    """
    if queue is not None and queue.startswith(WEBHOOKS):
        state = OF_WEBHOOK
    word = NOT_KNOWN if policy is None else _one_word(policy)
    key = f"{state}.{word}.{NOT_KNOWN if queue is None else queue}"
    if len(key.encode()) > LONGEST_NAME:
        return f"{state}.{word}.{RESERVED}{hashlib.sha256((queue or '').encode()).hexdigest()}"
    return key


NOT_KNOWN = "-"
"""In the key of an event: it has no policy, or no queue."""

WEBHOOKS = "tarry-webhooks."
"""The beginning of the names of webhooks' queues. They are attached to tarry, so they are outside its prefix."""

OF_WEBHOOK = "webhook"
"""The first word of the key of an event about a webhook's own queue, so that no webhook is bound to it."""


def event_patterns(state: str, queues: str) -> list[str]:
    """Binding keys on the topic exchange that match at least the events in a state about the queues that a glob
    matches. Of a queue with a very long name, only those of the name itself, or of `*`.
    """
    literal = re.split(r"[*?\[]", queues, maxsplit=1)[0]
    if literal == queues:
        hashed = f"{RESERVED}{hashlib.sha256(queues.encode()).hexdigest()}"
        of_queue = [queues] if len(queues.encode()) <= ALWAYS_IN_KEY else [queues, hashed]
        return [f"{state}.*.{word}" for word in of_queue]
    words = literal.rpartition(".")[0]
    return [f"{state}.*.{words}.#" if words else f"{state}.#"]


ALWAYS_IN_KEY = 50
"""Bytes. With a longer queue name the key may contain a hash instead, if the policy's name is long too."""


def _one_word(name: str) -> str:
    return name.replace("%", "%25").replace(".", "%2E")


GateKind = Literal["automatic-retries", "policy", "job-type"]
"""What a message can be paused by besides its destination, in the order of the gates."""

GATE_KINDS: tuple[GateKind, ...] = get_args(GateKind)

_GATE_WORDS: dict[GateKind, str] = {"automatic-retries": "auto", "policy": "policy", "job-type": "type"}


class Gate(NamedTuple):
    """A policy, a job type, or all automatic retries: what messages can be paused by besides their destination."""

    kind: GateKind
    name: str = ""
    """The policy or the job type; empty for automatic retries."""

    @property
    def key(self) -> str:
        """`~policy:invoices`, `~type:pdf`, `~auto`: one bindable word. Dots are encoded, and long names hashed."""
        return _gate_key(self.kind, self.name)

    @property
    def label(self) -> str:
        """What a pause of it is stored under, and the last part of the name of its held queue."""
        return self.key


Holder = Destination | Gate
"""What a held queue belongs to."""


def is_gate_key(text: str) -> bool:
    """Whether it is the key, and so the label, of a `Gate`."""
    return text.startswith(_GATE_STEMS) or text == AUTOMATIC.key


def describe_holder(holder: Holder) -> str:
    """For display: `orders`, `exchange:events`, `policy gold`, `job type pdf`, `automatic retries`."""
    if isinstance(holder, Destination):
        return holder.label
    return f"{holder.kind.replace('-', ' ')} {holder.name}".strip()


def holder_of(kind: str, name: str) -> Holder:
    """From the kind and the name that are stored with a paused destination."""
    if kind in GATE_KINDS:
        return Gate(kind, name)
    return Destination("exchange" if kind == "exchange" else "queue", name)


def holder_of_label(label: str) -> Holder:
    """As far as the label says: the name of a gate whose key is hashed is not known, and its label stands for it."""
    if not is_gate_key(label):
        return Destination.of_label(label)
    kind = next(kind for kind, word in _GATE_WORDS.items() if label.startswith(f"{RESERVED}{word}"))
    _, colon, word = label.partition(":")
    return Gate(kind, word.replace("%2E", ".").replace("%25", "%") if colon else label.partition("#")[2])


def _gate_key(kind: GateKind, name: str) -> str:
    stem = f"{RESERVED}{_GATE_WORDS[kind]}"
    if kind == "automatic-retries":
        return stem
    word = _one_word(name)
    if len(word.encode()) > LONGEST_GATE_WORD:
        return f"{stem}#{hashlib.sha256(name.encode()).hexdigest()}"
    return f"{stem}:{word}"


class Check(NamedTuple):
    """The check of one policy's messages when they are due: they wait in its check queue for an answer."""

    policy: str
    wait_ms: int
    """How long the queue waits for an answer; part of its name, as with tiers."""

    @property
    def key(self) -> str:
        """`~check:1m:invoices`: one bindable word. Dots are encoded."""
        return f"{_CHECK}{format_duration(self.wait_ms)}:{self.policy.replace('.', '%2E')}"


def is_check_key(key: str) -> bool:
    """Whether it is the key of a `Check`."""
    return key.startswith(_CHECK)


AUTOMATIC = Gate("automatic-retries")
_GATE_STEMS = tuple(f"{RESERVED}{_GATE_WORDS[kind]}{sign}" for kind in GATE_KINDS[1:] for sign in ":#")

Family = Literal["tier", "ladder", "relay", "held", "gate", "check", "probe"]
"""The kinds of queues of which there can be many."""

Kind = Literal[Family, "scheduled", "review", "audit", "cancelled", "unroutable", "layover", "events"]

_STEMS: dict[Family, str] = {
    "tier": "delay.",
    "ladder": "ladder.",
    "relay": "relay.",
    "held": "held.",
    "gate": "held~",
    "check": "check.",
    "probe": "probe.",
}
_DELAY = re.compile(r"[0-9]+(?:ms|s|m|h)")
_LEVEL_AND_DELAY = re.compile(rf"([0-9]+)\.({_DELAY.pattern})")
_WAIT_AND_POLICY = re.compile(rf"({_DELAY.pattern})\.(.+)")
_LANE_FAMILIES: tuple[Family, ...] = ("tier", "ladder", "relay")
"""Those of which each lane has its own."""
_QUEUE_OF_LANE = re.compile(rf"(delay|ladder|relay){LANE_SIGN}({LANE})(?:\.(.+))?", re.DOTALL)
_INTO_LANE = re.compile(rf"~in~({LANE}):.+")
_EXCHANGE_OF_LANE = re.compile(rf"(?:ladder{LANE_SIGN}({LANE})\.[0-9]+|relay(?:\.else)?{LANE_SIGN}({LANE}))")


class ParsedName(NamedTuple):
    """What the name of one of tarry's queues says. Fields that its kind does not have are None."""

    kind: Kind
    delay: str | None = None
    """Of a tier and a ladder queue: how long messages wait there, as written in the name."""
    level: int | None = None
    """Of a ladder queue."""
    label: str | None = None
    """Of a relay queue and a held queue: the label of its destination or gate. None for the relay queue that
    destinations share.
    """
    token: str | None = None
    """Of a probe queue."""
    policy: str | None = None
    """Of a check queue."""
    wait: str | None = None
    """Of a check queue: how long messages wait there for an answer, as written in the name."""
    lane: str | None = None
    """Of a tier, a ladder queue or a relay queue that belongs to a lane."""


def default_scheduled(prefix: str) -> str:
    """The queue of retry requests, where the topology names no other."""
    return f"{prefix}scheduled"


@dataclass(frozen=True, slots=True)
class Names:
    """The names of one installation."""

    prefix: str = DEFAULT_PREFIX
    scheduled: str = default_scheduled(DEFAULT_PREFIX)
    review_queue: str = DEFAULT_REVIEW_QUEUE

    @property
    def intake(self) -> str:
        return f"{self.prefix}intake"

    @property
    def delay(self) -> str:
        return f"{self.prefix}delay"

    @property
    def cancelled_gate(self) -> str:
        return f"{self.prefix}gate.cancelled"

    @property
    def cancelled(self) -> str:
        return f"{self.prefix}cancelled"

    @property
    def relay(self) -> str:
        return self.relay_of(None)

    @property
    def relay_else(self) -> str:
        return self.relay_else_of(None)

    def relay_of(self, lane: str | None) -> str:
        """The exchange of the relays, and the relay queue that destinations share: of a lane, or of everything else."""
        return f"{self.prefix}relay{_sign(lane)}"

    def relay_else_of(self, lane: str | None) -> str:
        return f"{self.prefix}relay.else{_sign(lane)}"

    @property
    def lanes_cancelled(self) -> str:
        """The cancelled gate of all lanes, behind their relays. Where it leads on, lanes and other messages meet."""
        return f"{self.prefix}lanes.cancelled"

    @property
    def held_gate(self) -> str:
        return f"{self.prefix}gate.held"

    @property
    def released_gate(self) -> str:
        return f"{self.prefix}gate.released"

    @property
    def arrive(self) -> str:
        return f"{self.prefix}arrive"

    @property
    def check_gate(self) -> str:
        """The exchange where messages that are due go to the check queue of their policy."""
        return f"{self.prefix}gate.check"

    def check_queue(self, policy: str, wait: int | str) -> str:
        """The queue where the messages of a policy wait until a consumer has decided; the wait as for `tier`."""
        return f"{self.stem('check')}{_delay_text(wait)}.{policy}"

    def gate(self, kind: GateKind) -> str:
        """The exchange where returning messages are held by their policy, their job type, or as automatic retries."""
        return f"{self.prefix}gate.{_GATE_WORDS[kind]}"

    @property
    def recheck_cancelled(self) -> str:
        """Where a message that is released from the held queue of a gate passes all gates again."""
        return f"{self.prefix}recheck.cancelled"

    @property
    def recheck_held(self) -> str:
        return f"{self.prefix}recheck.held"

    def recheck_gate(self, kind: GateKind) -> str:
        return f"{self.prefix}recheck.{_GATE_WORDS[kind]}"

    @property
    def home(self) -> str:
        return f"{self.prefix}home"

    @property
    def audit(self) -> str:
        return f"{self.prefix}audit"

    @property
    def spool(self) -> str:
        return f"{self.prefix}spool"

    @property
    def reports(self) -> str:
        return f"{self.prefix}reports"

    @property
    def deliver(self) -> str:
        return f"{self.prefix}deliver"

    @property
    def unroutable(self) -> str:
        return f"{self.prefix}unroutable"

    @property
    def layover(self) -> str:
        """The queue of messages that have waited as long as the ladder holds; the router sends them for the rest."""
        return f"{self.prefix}layover"

    @property
    def events(self) -> str:
        """The topic exchange of events."""
        return f"{self.prefix}events"

    @property
    def events_stream(self) -> str:
        """The stream that keeps all events for a time."""
        return f"{self.prefix}events.stream"

    def webhook_queue(self, webhook: str) -> str:
        """The queue of the deliveries of one webhook. A webhook's name has no dot, so no two names are equal."""
        return f"{self._webhooks}{webhook}"

    def webhook_of(self, queue: str) -> str | None:
        """The webhook of this installation that a queue belongs to; None for any other queue."""
        name = queue.removeprefix(self._webhooks)
        return name if name and name != queue and "." not in name else None

    @property
    def _webhooks(self) -> str:
        return f"{WEBHOOKS}{self.prefix.rstrip('.')}."

    @property
    def applied(self) -> str:
        """Carries no messages: the arguments of its binding record which topology was applied."""
        return f"{self.prefix}applied"

    @property
    def review(self) -> str:
        return f"{self.prefix}review"

    def tier(self, delay: int | str, lane: str | None = None) -> str:
        """The queue for one delay of a policy: in milliseconds, or a placeholder for display."""
        return f"{self.stem('tier', lane)}{_delay_text(delay)}"

    def whole_ladder(self, lane: str | None = None) -> str:
        """Stands for all ladder queues in metrics; no queue has this name."""
        return self.stem("ladder", lane).removesuffix(".")

    def ladder(self, level: int, lane: str | None = None) -> str:
        """The exchange of one level of the ladder."""
        return f"{self.stem('ladder', lane)}{level}"

    def ladder_queue(self, level: int, delay: int | str, lane: str | None = None) -> str:
        """One queue of a level of the ladder; the delay as for `tier`."""
        return f"{self.ladder(level, lane)}.{_delay_text(delay)}"

    def relay_queue(self, destination: Destination, lane: str | None = None) -> str:
        return f"{self.stem('relay', lane)}{destination.label}"

    def has_relay_queue(self, destination: Destination, lane: str | None = None) -> bool:
        """Whether the destination can have a relay queue of its own: in a lane its name is longer."""
        return destination.can_have_relay and (
            lane is None or len(self.relay_queue(destination, lane).encode()) <= LONGEST_NAME
        )

    def held_queue(self, holder: Holder) -> str:
        if isinstance(holder, Gate):
            return f"{self.stem('gate')}{holder.key.removeprefix(RESERVED)}"
        return f"{self.stem('held')}{holder.label}"

    def holding_exchange(self, holder: Holder) -> str:
        """Where a binding of the holder's key makes messages wait that come due."""
        return self.gate(holder.kind) if isinstance(holder, Gate) else self.held_gate

    def rechecking_exchange(self, holder: Holder) -> str:
        """Where a binding of the holder's key makes messages wait that another held queue releases."""
        return self.recheck_gate(holder.kind) if isinstance(holder, Gate) else self.recheck_held

    def probe_queue(self, token: str) -> str:
        """The twin queue of one probe of `tarry attach`, and the exchange that it dead-letters to."""
        return f"{self.stem('probe')}{token}"

    def probe_result_queue(self, token: str) -> str:
        """The queue in which the probe's message must arrive."""
        return f"{self.probe_queue(token)}.spy"

    def stem(self, family: Family, lane: str | None = None) -> str:
        """The beginning of the names of all queues of a family, or of those of them that belong to a lane."""
        stem = f"{self.prefix}{_STEMS[family]}"
        return stem if lane is None else f"{stem.removesuffix('.')}{_sign(lane)}."

    def parse(self, queue: str) -> ParsedName | None:
        """What the name of a queue says; None if tarry would not give a queue this name."""
        return _parse(self, queue) if len(queue) <= LONGEST_NAME else None  # longer text would fill the cache

    def is_waiting_queue(self, queue: str) -> bool:
        """Whether it is a tier or a ladder queue."""
        found = self.parse(queue)
        return found is not None and found.delay is not None

    def lane_of(self, queue: str) -> str | None:
        """The lane that a tier, a ladder queue or a relay queue belongs to; None for any other queue."""
        found = self.parse(queue)
        return found.lane if found is not None else None

    def lane_of_exchange(self, exchange: str) -> str | None:
        """The lane that an exchange belongs to; None for any other exchange."""
        if not exchange.startswith(self.prefix):
            return None
        found = _EXCHANGE_OF_LANE.fullmatch(exchange, len(self.prefix))
        return (found[1] or found[2]) if found else None

    def lane_of_key(self, key: str) -> str | None:
        """The lane that a routing key of the delay exchange leads into; None for any other key."""
        found = _INTO_LANE.fullmatch(key)
        return found[1] if found else None

    def destination_label(self, queue: str) -> str | None:
        """The label in the name of a relay queue or a held queue, also one of a gate; None for any other queue."""
        found = self.parse(queue)
        return found.label if found is not None else None

    def is_ladder_exchange(self, exchange: str) -> bool:
        stem = self.stem("ladder")
        return exchange.startswith(stem) and re.fullmatch(r"[0-9]+", exchange.removeprefix(stem)) is not None

    def is_taken(self, name: str) -> bool:
        """Whether the queue of requests and the review queue must not have this name: another queue may have it."""
        fixed = (self.audit, self.cancelled, self.unroutable, self.layover, self.relay, self.events_stream)
        stems = [self.stem(family) for family in _STEMS if family != "probe"]
        stems += [f"{self.stem(family).removesuffix('.')}{LANE_SIGN}" for family in _LANE_FAMILIES]
        return name in fixed or name.startswith(tuple(stems))

    def has_prefix(self, name: str) -> bool:
        """Whether the name is one that only this installation uses. The two queues that can be named freely may have
        other names.
        """
        return name.startswith(self.prefix)

    def is_ours(self, name: str) -> bool:
        """Whether a name belongs to tarry or to the broker; such a queue is never a destination."""
        return name.startswith((self.prefix, "amq.")) or name in ("", self.scheduled, self.review_queue)

    def is_users(self, name: str) -> bool:
        """Whether it can be a queue of the user's, to be attached: not tarry's, the broker's, or a webhook's."""
        return not self.is_ours(name) and not name.startswith(WEBHOOKS)


def _sign(lane: str | None) -> str:
    return "" if lane is None else f"{LANE_SIGN}{lane}"


def _delay_text(delay: int | str) -> str:
    return delay if isinstance(delay, str) else format_duration(delay)


@lru_cache(maxsize=4_096)
def _parse(names: Names, queue: str) -> ParsedName | None:
    fixed: dict[str, ParsedName] = {
        names.relay: ParsedName("relay"),
        names.audit: ParsedName("audit"),
        names.cancelled: ParsedName("cancelled"),
        names.unroutable: ParsedName("unroutable"),
        names.layover: ParsedName("layover"),
        names.events_stream: ParsedName("events"),
        names.scheduled: ParsedName("scheduled"),
        names.review_queue: ParsedName("review"),
    }
    if queue in fixed:
        return fixed[queue]
    of_lane = _QUEUE_OF_LANE.fullmatch(queue, len(names.prefix)) if queue.startswith(names.prefix) else None
    if of_lane is not None:
        return _parse_lane(of_lane[1], of_lane[2], of_lane[3])
    family = next((family for family in _STEMS if queue.startswith(names.stem(family))), None)
    return None if family is None else _parse_member(family, queue.removeprefix(names.stem(family)))


def _parse_lane(word: str, lane: str, rest: str | None) -> ParsedName | None:
    """Parses what follows the prefix, in parts: `delay`, `critical`, `8s`."""
    if rest is None:
        return ParsedName("relay", lane=lane) if word == "relay" else None
    family = next(family for family in _LANE_FAMILIES if _STEMS[family] == f"{word}.")
    found = _parse_member(family, rest)
    return None if found is None else found._replace(lane=lane)


def _parse_member(family: Family, rest: str) -> ParsedName | None:
    """Parses what follows the stem."""
    if family == "tier":
        return ParsedName("tier", delay=rest) if _DELAY.fullmatch(rest) else None
    if family == "ladder":
        found = _LEVEL_AND_DELAY.fullmatch(rest)
        return ParsedName("ladder", delay=found[2], level=int(found[1])) if found else None
    if family == "probe":
        return ParsedName("probe", token=rest)
    if family == "check":
        check = _WAIT_AND_POLICY.fullmatch(rest)
        return ParsedName("check", wait=check[1], policy=check[2]) if check else None
    if family == "gate":
        label = f"{RESERVED}{rest}"
        return ParsedName("gate", label=label) if is_gate_key(label) else None
    return ParsedName(family, label=rest)
