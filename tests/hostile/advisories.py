"""`make audit-dependencies`: every pinned package against what the package index knows of its vulnerabilities.

Exit code 1 if a pin has a known vulnerability, or is not a pin with a hash. Where the index cannot be asked, or knows
nothing of any version, that is said in one loud line, and nothing else is held up by it. See docs/adr/0015.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LOCK = Path("requirements.lock")
INDEX = "https://pypi.org/pypi"
TIMEOUT = 10.0
AT_ONCE = 8
_PIN = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]*)(?:\[[^]]*\])?==(?P<version>[^\s;\\]+)")


@dataclass(frozen=True, slots=True)
class Pin:
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


class UnansweredError(Exception):
    """The index said nothing about a pin."""


@dataclass
class Audit:
    """What was found; `problems` fail the run, `unanswered` do not."""

    asked: int = 0
    problems: list[str] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        yield from (f"VULNERABLE: {one}" for one in self.problems)
        if self.unanswered:
            known = self.asked - len(self.unanswered)
            share = f"{len(self.unanswered)} of {self.asked} pins"
            yield f"DEPENDENCIES NOT AUDITED: {share} ({self.unanswered[0]}); {known} were"
        elif not self.problems:
            yield f"dependencies audited: {self.asked} pins, no known vulnerability"


Ask = Callable[[Pin], Any]


def pins(text: str) -> tuple[list[Pin], list[str]]:
    """Of a lock file; and what in it is no pin with a hash, which nobody could audit."""
    found, wrong = [], []
    for entry in re.split(r"\n(?=\S)", text.strip()):
        if not entry or entry.startswith("#"):
            continue
        pin = _PIN.match(entry)
        if pin is None or "--hash=sha256:" not in entry:
            wrong.append(f"{entry.splitlines()[0][:80]}: not pinned to a version with a hash")
        else:
            found.append(Pin(pin["name"], pin["version"]))
    return found, wrong


def audit(text: str, ask: Ask) -> Audit:
    """`ask` answers with the index's JSON on one version, or raises UnansweredError."""
    found, wrong = pins(text)
    made = Audit(len(found), wrong)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for pin, answer in zip(found, pool.map(lambda one: _answer(ask, one), found), strict=True):
            if isinstance(answer, UnansweredError):
                made.unanswered.append(f"{pin}: {answer}")
            else:
                made.problems += [f"{pin}: {line}" for line in _known(answer)]
    return made


def _answer(ask: Ask, pin: Pin) -> list[dict[str, Any]] | UnansweredError:
    """An answer without the list is none: a mirror may leave it out."""
    try:
        vulnerabilities = ask(pin)["vulnerabilities"]
    except UnansweredError as error:
        return error
    except (KeyError, TypeError):
        return UnansweredError("the index keeps no advisories")
    return vulnerabilities if isinstance(vulnerabilities, list) else UnansweredError("the index keeps no advisories")


def _known(vulnerabilities: Iterable[dict[str, Any]]) -> Iterator[str]:
    for one in vulnerabilities:
        if not one.get("withdrawn"):
            mended = ", ".join(one.get("fixed_in") or []) or "no version yet"
            said = " ".join(str(one.get("summary") or one.get("details") or "").split())[:120]
            yield f"{one.get('id')} ({', '.join(one.get('aliases') or [])}): {said}; mended in {mended}"


def index(pin: Pin, base: str = INDEX) -> Any:
    """What the package index says of one version."""
    try:
        with urllib.request.urlopen(f"{base}/{pin.name}/{pin.version}/json", timeout=TIMEOUT) as answer:  # noqa: S310 - https, or a test's
            return json.load(answer)
    except urllib.error.HTTPError as error:
        error.close()
        raise UnansweredError(f"the index answers {error.code}") from error
    except (OSError, ValueError) as error:
        raise UnansweredError(f"the index does not answer: {getattr(error, 'reason', None) or error}") from error


def main(lock: Path = LOCK, base: str | None = None) -> int:
    """ADVISORY_INDEX names another index that keeps the same data."""
    where = base or os.environ.get("ADVISORY_INDEX") or INDEX
    made = audit(lock.read_text(encoding="utf-8"), lambda pin: index(pin, where.rstrip("/")))
    for line in made.lines():
        sys.stdout.write(f"{line}\n")
    return 1 if made.problems else 0


if __name__ == "__main__":
    sys.exit(main())
