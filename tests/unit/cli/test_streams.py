"""The command as a process: arguments in any bytes, output into a full disk, a closed pipe or an ASCII terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TARRY = [sys.executable, "-m", "tarry"]
NOWHERE = {
    "DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
    "RABBITMQ_URL": "amqp://guest:guest@127.0.0.1:1/",
    "RABBITMQ_MANAGEMENT_URL": "http://127.0.0.1:1",
}
ASCII = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

WRITING = [("config",), ("topology", "show"), ("topology", "export"), ("config", "--json"), ("--help",), ("--version",)]


def run(
    *words: str | bytes, stdout: int = subprocess.PIPE, given: bytes = b"", environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*TARRY, *words],
        env=os.environ | NOWHERE | (environment or {}),
        stdout=stdout,
        stderr=subprocess.PIPE,
        input=given,
        check=False,
    )


@pytest.mark.parametrize("words", WRITING, ids=" ".join)
def test_stdout_that_is_full_is_one_error_and_exit_code_1(words: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = run(*words, stdout=full.fileno())
    last = done.stderr.decode().splitlines()[-1]
    assert (done.returncode, last) == (1, "error: The output cannot be written: No space left on device."), done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize("words", WRITING, ids=" ".join)
def test_stdout_that_is_a_closed_pipe_is_no_error(words: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = run(*words, stdout=writing)
    finally:
        os.close(writing)
    assert done.returncode == 141, "as of a program that SIGPIPE ended"
    expected = ("Depths are not shown", "Topology: ")
    assert [line for line in done.stderr.decode().splitlines() if not line.startswith(expected)] == []


def test_stderr_that_is_full_does_not_change_the_answer() -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*TARRY, "topology", "show"],
            env=os.environ | NOWHERE,
            stdout=subprocess.PIPE,
            stderr=full.fileno(),
            check=False,
        )
    assert (done.returncode, b"retry.delay" in done.stdout) == (0, True)


@pytest.mark.parametrize("words", [*WRITING, ("explain", "--queue", "é"), ("explain", "--schedule")], ids=" ".join)
def test_stdout_in_ascii_gets_replacements_and_no_crash(words: tuple[str, ...]) -> None:
    done = run(*words, environment=ASCII)
    assert done.returncode == 0, done.stderr
    assert (done.stdout + done.stderr).isascii()
    assert b"Traceback" not in done.stderr


def test_json_in_ascii_says_the_same() -> None:
    words = ("explain", "--queue", "é…", "--error-reason", "ü", "--json")
    in_ascii, in_utf8 = (json.loads(run(*words, environment=one).stdout) for one in (ASCII, {}))
    assert in_ascii.pop("due") < in_utf8.pop("due"), "these are moments"
    assert in_ascii == in_utf8


@pytest.mark.parametrize(
    "words",
    [
        (b"history", b"\xff"),
        (b"explain", b"--queue", b"a\xffb"),
        (b"\xff",),
        (b"status", b"--\xff"),
        (b"pause", b"orders", b"--reason", b"\xc3\x28"),
    ],
)
def test_arguments_that_are_not_utf8_are_refused(words: tuple[bytes, ...]) -> None:
    done = run(*words)
    assert done.returncode == 2
    assert done.stdout == b""
    [line] = done.stderr.decode().splitlines()
    assert line.startswith("error: An argument is not valid UTF-8: ")
    assert "\\x" in line


@pytest.mark.parametrize("environment", [{}, ASCII], ids=["utf-8", "ascii"])
def test_arguments_in_utf8_mean_the_same_in_every_locale(environment: dict[str, str]) -> None:
    done = run(b"explain", b"--json", "--queue=ordres-é".encode(), environment=environment)
    assert json.loads(done.stdout)["queue"] == "ordres-é"


def test_ids_on_stdin_that_are_not_utf8_are_refused() -> None:
    for environment in ({}, ASCII):
        done = run("cancel", "-", given=b"good\n\xff\n", environment=environment)
        assert (done.returncode, b"Traceback" in done.stderr) == (2, False)
        assert b"stdin is not valid UTF-8" in done.stderr


@pytest.mark.parametrize(
    "words", [("a\x1b[2J\nb",), ("status", "a\x1b[2J\nb"), ("--a\x1b[2J\nb",), ("history", "a\x1b[2J\nb")]
)
def test_control_characters_of_arguments_are_escaped(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.returncode != 0
    assert b"\x1b" not in done.stdout + done.stderr
    assert not any(line.startswith("b") for line in done.stderr.decode().splitlines())


def test_a_file_that_cannot_be_written_is_one_line() -> None:
    for words in (("topology", "export", "-o", "/nonexistent/x"), ("topology", "schema", "-o", "/")):
        done = run(*words)
        [line] = [line for line in done.stderr.decode().splitlines() if not line.startswith("Topology: ")]
        assert (done.returncode, line.startswith(f"error: {words[-1]} cannot be written: ")) == (2, True), line
        assert "Errno" not in line
