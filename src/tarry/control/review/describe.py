"""A message's properties and headers as plain values, for JSON and for people. Pure.

What has no plain form is told as what it is, so that nothing passes for what it is not: bytes as base64, a timestamp as
its number of seconds.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from tarry.contract.fields import BadTableError, Field, walk, walk_array
from tarry.contract.properties import Properties

DEEPEST = 16
_FLOATS = {b"f": ">f", b"d": ">d"}


def describe(encoded: bytes | Properties) -> dict[str, Any]:
    """Properties that are set, headers apart."""
    try:
        properties = encoded if isinstance(encoded, Properties) else Properties.decode(encoded)
    except BadTableError as error:
        return {"unreadable": str(error)}
    said = {
        one.name: _plain(getattr(properties, one.name))
        for one in fields(properties)
        if one.name != "headers" and getattr(properties, one.name) is not None
    }
    return said | {"headers": headers(properties.headers or b"")}


def headers(table: bytes) -> dict[str, Any]:
    try:
        return dict(_entries(table, 0))
    except BadTableError as error:
        return {"unreadable": str(error)}


def _entries(table: bytes, depth: int) -> Iterator[tuple[str, Any]]:
    return ((name.decode(errors="backslashreplace"), _value(one, depth)) for name, one in walk(table))


def _value(one: Field, depth: int) -> Any:
    if one.kind == b"V":
        return None
    if one.kind == b"t":
        return one.value != b"\0"
    if one.kind in _FLOATS:
        return _finite(float(struct.unpack(_FLOATS[one.kind], one.value)[0]))
    if one.kind == b"T":
        return {"timestamp": int.from_bytes(one.value)}
    if one.kind in (b"F", b"A"):
        return _nested(one, depth)
    text = one.text()
    if text is not None:
        return text
    number = one.integer() if one.kind not in (b"S", b"x") else None
    return number if number is not None else {"base64": base64.b64encode(one.value).decode()}


def _nested(one: Field, depth: int) -> Any:
    if depth >= DEEPEST:
        return {"base64": base64.b64encode(one.value).decode()}
    if one.kind == b"F":
        return dict(_entries(one.value, depth + 1))
    return [_value(item, depth + 1) for item in walk_array(one.value)]


def _finite(number: float) -> float | str:
    """JSON has no others."""
    return number if number - number == 0 else str(number)


def _plain(value: bytes | int) -> str | int:
    return value if isinstance(value, int) else value.decode(errors="backslashreplace")
