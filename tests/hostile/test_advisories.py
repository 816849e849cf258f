"""A known vulnerability fails; an index that says nothing is no reason to fail, and none to call it good."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.hostile.advisories import LOCK, Pin, main, pins

HASH = "\\\n    --hash=sha256:" + "0" * 64
TWO = f"good==1.0 {HASH}\nbad[extra]==2.0 ; python_version < '4' {HASH}\n"
ADVISORY = {
    "id": "PYSEC-2026-1",
    "aliases": ["CVE-2026-1"],
    "details": "Reads\nbeyond its end.",
    "fixed_in": ["2.1"],
    "withdrawn": None,
}


class Index(BaseHTTPRequestHandler):
    """Answers as the package index does: the vulnerabilities of one version of one package."""

    answers: ClassVar[dict[str, Any]] = {}

    def do_GET(self) -> None:
        known = self.answers.get(self.path)
        self.send_response(404 if known is None else 200)
        self.end_headers()
        self.wfile.write(json.dumps(known).encode())

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def index() -> Iterator[str]:
    Index.answers = {"/good/1.0/json": {"vulnerabilities": []}, "/bad/2.0/json": {"vulnerabilities": []}}
    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def lock(tmp_path: Path) -> Path:
    path = tmp_path / "requirements.lock"
    path.write_text(TWO)
    return path


def test_nothing_known_is_said_and_passes(index: str, lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(lock, index) == 0
    assert capsys.readouterr().out == "dependencies audited: 2 pins, no known vulnerability\n"


def test_a_known_vulnerability_fails_with_what_mends_it(
    index: str, lock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Index.answers["/bad/2.0/json"] = {"vulnerabilities": [ADVISORY]}
    assert main(lock, index) == 1
    said = capsys.readouterr().out
    assert said == "VULNERABLE: bad 2.0: PYSEC-2026-1 (CVE-2026-1): Reads beyond its end.; mended in 2.1\n"


def test_an_advisory_that_was_withdrawn_is_none(index: str, lock: Path) -> None:
    Index.answers["/bad/2.0/json"] = {"vulnerabilities": [ADVISORY | {"withdrawn": "2026-01-01"}]}
    assert main(lock, index) == 0


@pytest.mark.parametrize("answer", [None, {}, {"info": {}}, {"vulnerabilities": None}, []])
def test_an_index_that_knows_nothing_is_told_and_is_no_good_news(
    index: str, lock: Path, capsys: pytest.CaptureFixture[str], answer: Any
) -> None:
    Index.answers["/bad/2.0/json"] = answer
    assert main(lock, index) == 0
    said = capsys.readouterr().out
    assert said.startswith("DEPENDENCIES NOT AUDITED: 1 of 2 pins (bad 2.0: the index ")
    assert len(said.splitlines()) == 1
    assert "no known vulnerability" not in said


def test_what_is_known_fails_even_where_the_rest_is_not(index: str, lock: Path) -> None:
    Index.answers = {"/bad/2.0/json": {"vulnerabilities": [ADVISORY]}}
    assert main(lock, index) == 1


def test_an_index_that_does_not_answer_does_not_stop_the_check(lock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(lock, "http://127.0.0.1:1") == 0
    assert capsys.readouterr().out.startswith("DEPENDENCIES NOT AUDITED: 2 of 2 pins")


@pytest.mark.parametrize("entry", ["loose>=1", "bare==1.0", "https://example.org/x.whl --hash=sha256:00"])
def test_what_is_not_pinned_with_a_hash_fails(index: str, lock: Path, entry: str) -> None:
    lock.write_text(f"{TWO}{entry}\n")
    assert main(lock, index) == 1


def test_our_own_lock_file_is_read_to_the_last_pin() -> None:
    found, wrong = pins(LOCK.read_text(encoding="utf-8"))
    assert wrong == []
    assert len(found) > 80
    assert "pika" in {pin.name for pin in found}
    assert pins(TWO) == ([Pin("good", "1.0"), Pin("bad", "2.0")], [])


def test_the_command_of_make_check_runs_it(index: str, lock: Path) -> None:
    """As make does: its exit code is what counts."""
    Index.answers["/bad/2.0/json"] = {"vulnerabilities": [ADVISORY]}
    program = f"import pathlib, tests.hostile.advisories as it; exit(it.main(pathlib.Path({str(lock)!r}), {index!r}))"
    assert subprocess.run([sys.executable, "-c", program], check=False, capture_output=True).returncode == 1
    assert "tests.hostile.advisories" in Path("Makefile").read_text(encoding="utf-8")
