"""Ways to break a sound request: in the bytes of its header table, in single headers, in its body, around it."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from random import Random

from tests.hostile.fuzz import grammar
from tests.hostile.fuzz.case import Case
from tests.unit.contract.wire import array, counted, death, integer, named, text

OURS = (
    *("original_queue", "original_exchange", "original_routing_key", "retry_count", "max_retries", "error_reason"),
    *("error_type", "error_class", "retry_after_ms", "next_retry_at_ms", "priority", "job_type", "review_reason"),
    *("tarry-id", "tarry-round", "tarry-count", "tarry-max-retries", "tarry-due-ms", "tarry-since-ms", "tarry-queue"),
    *(
        "tarry-exchange",
        "tarry-key",
        "tarry-form",
        "tarry-via",
        "tarry-probe",
        "tarry-user-id",
        "tarry-priority",
        "tarry-strays",
    ),
    *("tarry-broken-headers", "x-death", "x-first-death-queue", "x-delivery-count", "CC", "BCC"),
)
HUGE = (-1, 0, 2**31, 2**32 - 1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63))
FORBIDDEN = (
    "",
    "retry.audit",
    "amq.gen-x",
    "manual-review.pending",
    "a\x00b",
    "~to:x",
    "q" * 256,
    "../../etc",
    "ret\nry.audit",
)
UUID = "24e9476b-f4f5-5044-8227-4c112216f4bc"
LARGEST_TABLE = 131_000
"""Bytes: a broker sends no larger frame, unless it is configured to."""


def _rarely_large(random: Random, *sizes: int) -> int:
    """The smallest nearly always: a million cases must end some day."""
    return sizes[0] if random.random() < 0.97 else random.choice(sizes[1:])


def cut_short(random: Random, raw: bytes) -> bytes:
    return raw[: random.randrange(len(raw) + 1)]


def flip(random: Random, raw: bytes) -> bytes:
    if not raw:
        return raw
    place = random.randrange(len(raw))
    return raw[:place] + bytes((raw[place] ^ 1 << random.randrange(8),)) + raw[place + 1 :]


def lie_about_a_length(random: Random, raw: bytes) -> bytes:
    """Behind a type that has one."""
    places = [place for place, one in enumerate(raw[:-4]) if one in b"SxAF"]
    if not places:
        return raw
    place = random.choice(places) + 1
    lie = random.choice([0, 1, 2**31 - 1, 2**32 - 1, len(raw), random.randrange(2**16)])
    return raw[:place] + struct.pack(">I", lie) + raw[place + 4 :]


def splice(random: Random, raw: bytes) -> bytes:
    place, length = random.randrange(len(raw) + 1), random.randrange(20)
    return raw[:place] + random.randbytes(random.randrange(20)) + raw[place + length :]


def unknown_type(random: Random, raw: bytes) -> bytes:
    return raw + named(b"odd", bytes((random.choice(b"?zZ\x00\xff"),)) + random.randbytes(8))


def twice(_random: Random, raw: bytes) -> bytes:
    return raw + raw


def many_tiny(random: Random, raw: bytes) -> bytes:
    """A frame full of the smallest entries there are."""
    return raw + random.choice([b"\x00V", b"\x01aV", b"\x00t\x01"]) * _rarely_large(random, 100, 3_990, 4_000, 43_000)


def deep(random: Random, raw: bytes) -> bytes:
    """Arrays or tables in each other, every length as it should be."""
    levels, kind = _rarely_large(random, 100, 5_000, 20_000), random.choice([b"A", b"F"])
    step = 5 if kind == b"A" else 6
    heads = (
        (b"" if kind == b"A" or level == 0 else b"\x00") + kind + struct.pack(">I", step * (levels - level - 1))
        for level in range(levels)
    )
    name = random.choice([b"deep", b"x-death", b"retry_count", b"original_queue"])
    return raw + named(name, b"".join(heads))


def one_of_ours(random: Random, raw: bytes) -> bytes:
    """A header of the contract or of tarry's own, with a value of any kind."""
    return raw + named(random.choice(OURS), _wrong(random))


def several_of_ours(random: Random, raw: bytes) -> bytes:
    """As they come together: with an id and a queue the others are read, too."""
    base = {"tarry-id": text(UUID), "tarry-queue": text("orders.1"), "original_queue": text("orders.1")}
    chosen = base | {random.choice(OURS): _wrong(random) for _ in range(3)}
    return raw + b"".join(named(key, given) for key, given in chosen.items())


def many_deaths(random: Random, raw: bytes) -> bytes:
    one = random.choice([death("retry.delay.8s", "expired"), counted(b"F", b""), death("orders", keys=[b"\xff"])])
    return raw + named("x-death", array(*[one] * _rarely_large(random, 1, 20, 1_000)))


def _wrong(random: Random) -> bytes:
    kinds: list[Callable[[], bytes]] = [
        lambda: grammar.value(random),
        lambda: integer(random.choice(HUGE)),
        lambda: text(random.choice(FORBIDDEN)),
        lambda: text(random.randbytes(random.randrange(20))),
        lambda: text(random.choice([UUID, f"{{{UUID}}}", f"urn:uuid:{UUID}", "9" * 19, "9" * 5_000, "-1", "²"])),
        lambda: b"d" + struct.pack(">d", random.choice([float("nan"), float("inf"), 1e308, -0.0, 0.5])),
        lambda: text("e" * _rarely_large(random, 4_095, 4_097, 100_000)),
    ]
    return random.choice(kinds)()


TABLE = (
    *(cut_short, flip, flip, lie_about_a_length, splice, unknown_type, twice, many_tiny, deep),
    *(one_of_ours, one_of_ours, one_of_ours, several_of_ours, several_of_ours, many_deaths),
)


def bad_json(random: Random, raw: bytes) -> bytes:
    """The same document with something in it that a reader may stumble over."""
    inner = raw.strip()[1:-1] or b'"a":1'
    odd = random.choice(
        [
            b'"x":' + b"[" * _rarely_large(random, 50, 5_000),
            b'"x":' + b"[" * 500 + b"]" * 500,
            b'"original_payload":' + b"[" * 400 + b"]" * 400,
            b'"retry_count":' + b"9" * random.choice([10, 400, 5_000]),
            b'"retry_count":1e999',
            b'"max_retries":NaN',
            b'"message_id":"\\ud800"',
            b'"original_queue":"a","original_queue":"b"',
            b'"original_queue":{"a":1}',
            b'"originalPayload":"*"',
            b'"original_payload":"' + b"A" * 4_001 + b'"',
            b'"outcomes":[[[[{}]]]]',
            b'"outcomes":[{"id":1,"round":-1}]',
            b'"next_retry_at_ms":' + str(random.choice(HUGE)).encode(),
        ]
    )
    made = b"{" + inner + b"," + odd + b"}"
    if random.random() < 0.1:
        return made.decode(errors="replace").encode("utf-16")
    return made


def bad_protobuf(random: Random, raw: bytes) -> bytes:
    """Known fields in wrong types, lengths that lie, numbers without an end, groups in each other."""
    field = random.randrange(1, 9)
    odd = random.choice(
        [
            bytes((field << 3 | 2,)) + b"\xff\xff\xff\xff\x0f",
            bytes((field << 3,)) + b"\xff" * 11,
            bytes((field << 3 | random.randrange(8),)) + random.randbytes(9),
            bytes((0x1A, 2)) + b"\xff\xfe",
            bytes((field << 3 | 3,)) * random.choice([1, 200]),
            b"\x28" + b"\xff" * 9 + b"\x01",
        ]
    )
    return raw + odd


def not_base64(_random: Random, raw: bytes) -> bytes:
    try:
        fields = json.loads(raw)
    except (ValueError, RecursionError):
        return raw
    return json.dumps(fields | {"original_payload": "a b*"}).encode() if isinstance(fields, dict) else raw


BODY = {
    "json": (cut_short, flip, splice, bad_json, bad_json, not_base64),
    "report": (cut_short, flip, splice, bad_json, bad_json),
    "protobuf": (cut_short, flip, splice, bad_protobuf, bad_protobuf),
}


def around(random: Random, case: Case) -> Case:
    """The properties, the exchange and the key."""
    return replace(
        case,
        content_type=random.choice([None, b"application/json", b"application/x-protobuf", random.randbytes(10)]),
        message_id=random.choice([None, b"", b"\x00", b"\xff" * 255]),
        user_id=random.choice([None, b"\xff"]),
        exchange=random.choice(["", "retry.intake", "retry.reports", "x"]),
        key=random.choice(["", "~to:x", "k" * 255, "\x1b[2J"]),
    )


def mutated(random: Random, case: Case) -> Case:
    """Broken in one to three ways."""
    names: list[str] = []
    for _ in range(random.choice([1, 1, 2, 3])):
        chance = random.random()
        if chance < 0.1:
            case = around(random, case)
            names.append("around")
        elif chance < 0.5 and case.form in BODY:
            way = random.choice(BODY[case.form])
            case = replace(case, body=way(random, case.body))
            names.append(way.__name__)
        else:
            change = random.choice(TABLE)
            case = replace(case, headers=change(random, case.headers)[:LARGEST_TABLE])
            names.append(change.__name__)
    return replace(case, expected=None, mutations=tuple(names))
