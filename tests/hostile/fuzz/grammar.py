"""Sound requests in every form, with headers of an application's own of every type: what the mutations start from."""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Callable
from random import Random

from tarry.contract.retry_pb2 import RetryMessage
from tests.hostile.fuzz.case import Case, Expected
from tests.unit.contract.wire import array, counted, death, integer, named, table, text

NEAR_MISSES = (b"tarry", b"Tarry-id", b"x-deat", b"cc", b"bcc", b"original_queu", b"retry_count ", b"x-last-death", b"")
CONTRACT = (b"retry_count", b"max_retries", b"priority", b"error_reason", b"error_class", b"review_reason")
"""On a message that was merely rejected these are the application's own, and pass."""
LETTERS = "abcxyz0189.-_/ ~#*'\"\\;<>%\n\té\u202e\U0001f600ß漢"
MOST = 1_000
OWN_JSON = b"application/vnd.tarry.retry+json"
"""An envelope for certain, whatever its headers say."""
FIXED = {"t": 1, "b": 1, "B": 1, "s": 2, "u": 2, "U": 2, "I": 4, "i": 4, "l": 8, "L": 8, "f": 4, "d": 8, "D": 5, "T": 8}
SCALARS = (*FIXED, "V", "S", "x")


def value(random: Random, depth: int = 3) -> bytes:
    """A value of any type, nested."""
    kind = random.choice(SCALARS) if not depth or random.random() < 0.8 else random.choice("AF")
    if kind == "A":
        return array(*(value(random, depth - 1) for _ in range(random.randrange(4))))
    if kind == "F":
        return table(*(named(name(random), value(random, depth - 1)) for _ in range(random.randrange(4))))
    if kind in "Sx":
        return counted(kind.encode(), random.randbytes(random.randrange(30)))
    return kind.encode() + random.randbytes(FIXED.get(kind, 0))


def name(random: Random) -> bytes:
    if random.random() < 0.2:
        return random.choice(NEAR_MISSES)
    return b"u" + random.randbytes(random.randrange(9))


def word(random: Random, longest: int = 20) -> str:
    return "".join(random.choices(LETTERS, k=random.randrange(1, longest)))


def queue_name(random: Random) -> str:
    """Any name that a broker accepts: most are ordinary, some have 255 bytes."""
    chance = random.random()
    if chance < 0.5:
        return f"orders.{random.randrange(50)}"
    if chance < 0.6:
        return "q" * 255
    return "q" + word(random).replace("\n", "")


def number(random: Random, given: int) -> bytes:
    """An integer as one client or another would write it."""
    ways = [integer(given), text(str(given)), b"d" + struct.pack(">d", given)]
    if given < 2**31:
        ways += [b"I" + struct.pack(">i", given), b"i" + struct.pack(">I", given)]
    if given < 2**24:
        ways.append(b"f" + struct.pack(">f", given))
    if given < 2**7:
        ways += [b"b" + struct.pack(">b", given), b"B" + bytes((given,))]
    return random.choice(ways)


def own_headers(random: Random, *more: bytes) -> list[bytes]:
    return [named(name(random), value(random)) for _ in range(random.randrange(6))] + list(more)


def sound(random: Random) -> Case:
    """One of the forms."""
    return random.choice(FORMS)(random)


def _reject(random: Random) -> Case:
    queue, body = queue_name(random), random.randbytes(random.randrange(60))
    entries = own_headers(random, *(named(one, value(random)) for one in CONTRACT if random.random() < 0.2))
    deaths = [
        death(queue, random.choice(["rejected", "delivery_limit"]), random.choice(["", "shop"]), ["k" + word(random)])
    ]
    if random.random() < 0.3:
        deaths.insert(0, death("retry.delay.8s", "expired"))
    deaths += [death(queue_name(random), "expired") for _ in range(random.randrange(3))]
    entries.insert(random.randrange(len(entries) + 1), named("x-death", array(*deaths)))
    kind = random.choice([None, b"application/json", b"text/plain"])
    message_id = random.choice([None, b"m1", random.randbytes(20)])
    return Case("reject", b"".join(entries), body, kind, message_id, None, "retry.intake", queue, Expected(queue, body))


def _said(random: Random) -> tuple[list[bytes], dict[str, int | str]]:
    """Some of what the contract's headers can say, and the same as values."""
    said: dict[str, int | str] = {}
    if random.random() < 0.5:
        said["retry_count"] = random.randrange(MOST)
    if random.random() < 0.5:
        said["max_retries"] = random.randrange(MOST)
    if random.random() < 0.5:
        said["error_reason"] = word(random, 60)
    if random.random() < 0.3:
        said["error_class"] = random.choice(["final", "retryable", "rate_limited", "Rate-Limited", "RETRYABLE"])
    if random.random() < 0.3:
        said["retry_after_ms"] = random.choice([0, 1, 125, 60_000, 2**31, 2**53])
    entries = [
        named(key, text(given) if isinstance(given, str) else number(random, given)) for key, given in said.items()
    ]
    if random.random() < 0.3:
        entries.append(named("priority", random.choice([text("high"), integer(9), b"d" + struct.pack(">d", 1e300)])))
    return entries, said


def _headers(random: Random) -> Case:
    queue, body = queue_name(random), random.randbytes(random.randrange(60))
    said, values = _said(random)
    entries = [*own_headers(random), *said, named("original_queue", queue)]
    random.shuffle(entries)
    if "error_class" in values:
        values["error_class"] = str(values["error_class"]).lower().replace("-", "_")
    expected = Expected(queue, body, "m2", **values)  # type: ignore[arg-type] # the keys decide the types
    user_id = random.choice([None, b"alice"])
    return Case("headers", b"".join(entries), body, message_id=b"m2", user_id=user_id, expected=expected)


def _envelope_fields(random: Random) -> tuple[dict[str, object], Expected]:
    fields: dict[str, object] = {"original_queue": queue_name(random)}
    fields["original_payload"] = random.randbytes(random.randrange(60))
    if random.random() < 0.7:
        fields["message_id"] = word(random)
    if random.random() < 0.5:
        fields["retry_count"] = random.randrange(MOST)
    if random.random() < 0.5:
        fields["max_retries"] = random.randrange(MOST)
    if random.random() < 0.5:
        fields["error_reason"] = word(random, 60)
    said = {key: given for key, given in fields.items() if key not in ("original_queue", "original_payload")}
    return fields, Expected(fields["original_queue"], fields["original_payload"], **said)  # type: ignore[arg-type]


def _protobuf(random: Random) -> Case:
    fields, expected = _envelope_fields(random)
    body = RetryMessage(**fields).SerializeToString()  # type: ignore[arg-type]
    kind = random.choice([b"application/x-protobuf", b"application/vnd.tarry.retry; v=1", b"Application/Protobuf"])
    return Case("protobuf", b"".join(own_headers(random)), body, kind, expected=expected)


def _json(random: Random) -> Case:
    fields, expected = _envelope_fields(random)
    payload = b64encode(expected.body).decode()
    body = json.dumps(fields | {"original_payload": payload}, ensure_ascii=random.random() < 0.5).encode()
    kind = random.choice([OWN_JSON, b"application/json; charset=utf-8"])
    empty = kind != OWN_JSON or random.random() < 0.5
    more = [named("original_queue", b"V" if empty else "elsewhere")] if random.random() < 0.5 else []
    return Case("json", b"".join(own_headers(random, *more)), body, kind, expected=expected)


def _report(random: Random) -> Case:
    """Of consumers, about starts and successes; these come to the tap."""
    known = {"id": "24e9476b-f4f5-5044-8227-4c112216f4bc", "at_ms": 1_700_000_000_000}
    kinds: tuple[dict[str, str], ...] = ({}, {"outcome": "succeeded"}, {"outcome": "started", "consumer": "host:1"})
    rows = [known | {"round": random.randrange(99)} | random.choice(kinds) for _ in range(random.randrange(5))]
    return Case("report", b"", json.dumps({"outcomes": rows}).encode(), exchange="retry.reports")


FORMS: tuple[Callable[[Random], Case], ...] = (_reject, _reject, _headers, _headers, _protobuf, _json, _json, _report)
