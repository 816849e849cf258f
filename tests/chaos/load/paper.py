"""The ledger and the arrivals: lines of JSON that are on the disk before anything else happens."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tests.chaos.load.plan import Task, read_task

Did = Literal["accept", "reject", "ask", "damaged"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One delivery to a consumer."""

    number: int
    queue: str
    round: int
    due_ms: int
    """What tarry promised; 0 on the first way."""
    at_ms: int
    redelivered: bool
    did: Did


class Writer:
    """Lines are on the disk when `write` returns, whichever process is killed next."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, lines: Iterable[dict[str, Any]]) -> None:
        text = "".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines)
        if text:
            self._file.write(text.encode())
            os.fsync(self._file.fileno())

    def planned(self, tasks: Iterable[Task], at_ms: int) -> None:
        self.write({"planned": asdict(task), "at": at_ms} for task in tasks)

    def again(self, numbers: Iterable[int]) -> None:
        self.write({"again": number} for number in numbers)

    def confirmed(self, numbers: Iterable[int], at_ms: int) -> None:
        self.write({"confirmed": number, "at": at_ms} for number in numbers)

    def arrived(self, arrivals: Iterable[Arrival]) -> None:
        self.write(asdict(arrival) for arrival in arrivals)

    def close(self) -> None:
        self._file.close()


class Reader:
    """What was added to a file since the last look; half a line waits for its other half."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def new(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._read += len(line)
                yield json.loads(line)


@dataclass(slots=True)
class Entry:
    """One message in the ledger."""

    task: Task
    at_ms: int
    confirmed_ms: int = 0
    tries: int = 1


def read_ledger(lines: Iterable[dict[str, Any]], into: dict[int, Entry]) -> None:
    for line in lines:
        if "planned" in line:
            task = read_task(line["planned"])
            into[task.number] = Entry(task, line["at"])
        elif "again" in line:
            into[line["again"]].tries += 1
        else:
            into[line["confirmed"]].confirmed_ms = line["at"]
