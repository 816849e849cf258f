"""Node and Java for the tests of clients/ and examples/: the runtimes, their AMQP libraries, and what is built.

`make test` installs the Debian packages where apt-get can be used. AMQP_CLIENT_JARS is a folder with the jars of
amqp-client and slf4j-api (Debian's packages put them into /usr/share/java).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal, NoReturn

import pytest

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "clients"
BUILT = ROOT / ".tarry" / "clients"
JARS = Path(os.environ.get("AMQP_CLIENT_JARS", "/usr/share/java"))


def missing(runtime: str, reason: str) -> NoReturn:
    """Skips the test, loudly; in CI it fails, unless TARRY_ALLOW_MISSING_RUNTIMES names the runtime ("node,java")."""
    told = f"NO {runtime.upper()}: its client is not tested. {reason}"
    if os.environ.get("CI") and runtime not in os.environ.get("TARRY_ALLOW_MISSING_RUNTIMES", "").split(","):
        pytest.fail(told, pytrace=False)
    pytest.skip(told)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Workers of one run build the same things."""
    BUILT.mkdir(parents=True, exist_ok=True)
    with (BUILT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def require(runtime: Literal["node", "java"]) -> None:
    if not shutil.which(runtime):
        missing(runtime, f"{runtime} is not on PATH: run `make test`, or install its package.")


def install_packages(folder: Path) -> None:
    """The packages that a lock file pins."""
    if not (shutil.which("node") and shutil.which("npm")):
        missing("node", "node and npm are not on PATH: run `make test`, or install the packages nodejs and npm.")
    done = subprocess.run(
        ["npm", "ci", "--no-audit", "--no-fund"], cwd=folder, capture_output=True, text=True, check=False
    )
    if done.returncode:
        missing("node", f"npm ci did not work in {folder}: {done.stderr[-300:]}")


@cache
def node_client() -> Path:
    """The folder of the client, with the library that its tests need."""
    folder = CLIENTS / "node"
    with one_at_a_time():
        if not (folder / "node_modules" / "amqplib").exists():
            install_packages(folder)
    require("node")
    return folder


def jars() -> list[Path]:
    """amqp-client and what it needs."""
    found = [JARS / "amqp-client.jar", JARS / "slf4j-api.jar"]
    if not shutil.which("javac") or not all(jar.exists() for jar in found):
        missing("java", f"no javac on PATH, or no amqp-client.jar and slf4j-api.jar in {JARS}: set AMQP_CLIENT_JARS.")
    return found


@cache
def java_classpath() -> str:
    """The client's jar, the classes of its tests, and amqp-client. Built once for each state of the sources."""
    libraries = jars()
    sources = sorted([*(CLIENTS / "java").rglob("*.java"), CLIENTS / "java" / "build.sh"])
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    folder = BUILT / f"java-{digest}"
    jar = folder / "tarry-client.jar"
    classpath = ":".join(map(str, [jar, folder / "test", *libraries]))
    with one_at_a_time():
        if not (folder / "test" / "Conformance.class").exists():
            run("sh", CLIENTS / "java" / "build.sh", folder, libraries[0])
            (folder / "test").mkdir(parents=True, exist_ok=True)
            tests = (CLIENTS / "java" / "test").glob("*.java")
            run("javac", "-Xlint:all", "-Werror", "-cp", classpath, "-d", folder / "test", *tests)
    return classpath


def run(*command: object) -> None:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
