"""One fuzzed delivery: its content, how it was made, and what must become of it if nothing was broken."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tarry.amqp.delivery import Delivery
from tarry.amqp.properties import Properties


@dataclass(frozen=True, slots=True)
class Expected:
    """What a sound request says; None where it says nothing."""

    queue: str
    body: bytes
    message_id: str | None = None
    retry_count: int = 0
    max_retries: int | None = None
    error_reason: str | None = None
    error_class: str | None = None
    retry_after_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """Everything that a broker would deliver. `expected` is None once something was broken: then any
    result is right that does no harm.
    """

    form: str
    headers: bytes
    body: bytes = b""
    content_type: bytes | None = None
    message_id: bytes | None = None
    user_id: bytes | None = None
    exchange: str = ""
    key: str = "retry.scheduled"
    expected: Expected | None = None
    mutations: tuple[str, ...] = ()

    @property
    def properties(self) -> Properties:
        return Properties(
            headers=self.headers, content_type=self.content_type, message_id=self.message_id, user_id=self.user_id
        )

    @property
    def delivery(self) -> Delivery:
        return Delivery(self.body, self.properties, self.exchange, self.key)

    def __str__(self) -> str:
        return (
            f"{self.form}, {len(self.headers)} bytes of headers, {len(self.body)} of body, {self.mutations or 'sound'}"
        )


def save(case: Case, about: dict[str, Any], folder: Path) -> Path:
    """As a file that `--replay` takes: the bytes themselves, so it stays the same when the generator changes."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"case-{about['seed']}-{about['number']}.json"
    path.write_text(json.dumps({"about": about, "case": _plain(asdict(case))}, indent=2), encoding="utf-8")
    return path


def read(path: Path) -> Case:
    fields = _bytes_again(json.loads(path.read_text(encoding="utf-8"))["case"])
    expected = Expected(**fields["expected"]) if fields["expected"] else None
    return Case(**(fields | {"expected": expected, "mutations": tuple(fields["mutations"])}))


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": b64encode(value).decode()}
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return value


def _bytes_again(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"base64"}:
            return b64decode(value["base64"])
        return {name: _bytes_again(one) for name, one in value.items()}
    return value
