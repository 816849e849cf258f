"""What people read of a broken request, message or report is English, and has no names of Python's types in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tarry.cli.explain import from_json
from tarry.contract.envelope import open_envelope
from tarry.contract.header_reader import RefusalError
from tarry.contract.outcome import BadReportError, read_report
from tarry.errors import SettingsError

PYTHON = re.compile(
    r"NoneType|set_int_max|\bint\(\)|\b(str|dict|list|int|float|bool) object|got '|codec|recursion|Errno|Error\b|<class"
    r"|literal|\bTrue\b|\bFalse\b|subscript|attribute"
)
HUGE = b"1" + b"0" * 5_000
QUEUE = b'{"original_queue": "q", '


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "it is not valid JSON (line 1, column 1)"),
        (b"{", "it is not valid JSON (line 1, column 2)"),
        (b'{"a": 1} x', "it is not valid JSON (line 1, column 10)"),
        (b"\xff", "it is not UTF-8 text, at byte 0"),
        (b"null", "it must be a JSON object"),
        (b"[]", "it must be a JSON object"),
        (b"[" * 100_000, "it is nested too deeply"),
        (QUEUE + b'"retry_count": ' + HUGE + b"}", "a number in it has more than 4,300 digits"),
        (QUEUE + b'"retry_count": "x"}', "`retry_count` must be a whole number from 0 to 2147483647"),
        (QUEUE + b'"retry_count": 1.5}', "`retry_count` must be a whole number from 0 to 2147483647"),
        (QUEUE + b'"retry_count": []}', "`retry_count` must be a whole number from 0 to 2147483647"),
        (QUEUE + b'"max_retries": true}', "`max_retries` must be a whole number from 0 to 2147483647"),
        (
            QUEUE + b'"next_retry_at_ms": "soon"}',
            "`next_retry_at_ms` must be a whole number from 0 to 9223372036854775807",
        ),
        (QUEUE + b'"error_reason": 5}', "`error_reason` must be text"),
        (b'{"original_queue": ["q"]}', "`original_queue` must be text"),
        (b'{"original_queue": "\\ud800"}', "`original_queue` must be text"),
        (QUEUE + b'"original_payload": {"a": 1}}', "`original_payload` is not base64"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_envelope_in_json_that_is_broken_says_what_is_wrong(body: bytes, reason: str) -> None:
    with pytest.raises(RefusalError) as refused:
        open_envelope(b"application/json", body)
    assert str(refused.value) == f"the RetryMessage envelope cannot be read: {reason}"


@pytest.mark.parametrize(
    ("body", "reason"), [(b"\xff", "it is not protobuf"), (b"\x0a\x02\xff\xff", "a text in it is not UTF-8")]
)
def test_envelope_in_protobuf_that_is_broken_says_what_is_wrong(body: bytes, reason: str) -> None:
    with pytest.raises(RefusalError) as refused:
        open_envelope(b"application/x-protobuf", body)
    assert str(refused.value) == f"the RetryMessage envelope cannot be read: {reason}"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"3",
        b'"text"',
        b"\xff",
        b"[null]",
        b'{"properties": 3}',
        b'{"properties": {"headers": 5}}',
        b'{"properties": {"priority": "high"}}',
        b'{"properties": {"priority": null}}',
        b'{"properties": {"timestamp": ' + HUGE + b"}}",
        b'{"payload": "?", "payload_encoding": "base64"}',
        b"[" * 100_000,
    ],
    ids=lambda text: ascii(text)[:40],
)
def test_explain_says_in_english_what_is_wrong_with_a_message(tmp_path: Path, text: bytes) -> None:
    file = tmp_path / "message.json"
    file.write_bytes(text)
    with pytest.raises(SettingsError) as refused:
        from_json(str(file))
    assert not PYTHON.search(str(refused.value)), refused.value


def test_explain_says_in_english_that_a_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"does not contain a message: No such file or directory\."):
        from_json(str(tmp_path / "nothing"))


@pytest.mark.parametrize("row", [b"null", b"3", b"{}", b'{"id": 3}', b'{"id": null}', b'{"id": "x"}'])
def test_outcome_that_is_broken_says_what_is_wrong(row: bytes) -> None:
    with pytest.raises(BadReportError) as refused:
        read_report(b'{"outcomes": [' + row + b"]}")
    assert str(refused.value) == "an outcome must be a JSON object whose `id` is a UUID"
