"""Reads topology/ and reports every mistake at once, with file, key and what would be right."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tarry.errors import TopologyError
from tarry.topology.mistakes import messages, without_echoes
from tarry.topology.model import Topology

MAIN_FILE = "tarry.toml"
POLICY_FOLDER = "policies"


def shipped() -> Path:
    """The topology that comes with tarry: a copy inside an installed package, or the folder of this checkout."""
    inside = Path(__file__).parent / "shipped"
    return inside if inside.is_dir() else Path(__file__).parents[3] / "topology"


def load(folder: Path) -> Topology:
    """The whole topology in `folder`, or one TopologyError that lists all that is wrong with it."""
    sources = _Sources(folder)
    try:
        return Topology.model_validate(sources.data)
    except ValidationError as error:
        raise TopologyError(sorted(sources.explain(error), key=sources.rank)) from None


class _Sources:
    """The files as one mapping, with a memory of which file each policy came from."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._origin: list[tuple[Path, str]] = []
        self.data: dict[str, Any] = self._read_all()

    def _read_all(self) -> dict[str, Any]:
        main = self._folder / MAIN_FILE
        if not main.is_file():
            raise TopologyError(
                f"{main}: no such file. Point --topology (or TARRY_TOPOLOGY) at a folder with a {MAIN_FILE}; "
                f"the shipped one is {shipped()}."
            )
        problems: list[str] = []
        data = _read(main, problems)
        policies = [(main, policy) for policy in _policies_in(data, main, problems)]
        for path in sorted((self._folder / POLICY_FOLDER).glob("*.toml")):
            policies += [(path, policy) for policy in self._policy_file(path, problems)]
        if problems:
            raise TopologyError(problems)
        self._origin = [(path, str(policy.get("name", "unnamed"))) for path, policy in policies]
        return data | {"policy": [policy for _, policy in policies]}

    def _policy_file(self, path: Path, problems: list[str]) -> list[dict[str, Any]]:
        data = _read(path, problems)
        problems += [
            f"{path}: {key}: has no place here; a file in {POLICY_FOLDER}/ holds [[policy]] tables only"
            for key in data
            if key != "policy"
        ]
        return _policies_in(data, path, problems)

    def explain(self, error: ValidationError) -> Iterator[str]:
        """`topology/policies/10-email.toml: policy email, jitter: …`, one line for each mistake."""
        for problem in without_echoes(error.errors()):
            for message in messages(problem):
                yield f"{self._place(problem['loc'])}: {message}"

    def rank(self, line: str) -> bool:
        """The main file first; within a file, as found."""
        return not line.startswith(str(self._folder / MAIN_FILE))

    def _place(self, location: Sequence[int | str]) -> str:
        path, keys = self._folder / MAIN_FILE, list(location)
        if keys[:1] == ["policy"] and len(keys) > 1 and isinstance(keys[1], int):
            path, name = self._origin[keys[1]]
            keys = [f"policy {name}", *keys[2:]]
        return ": ".join(filter(None, [str(path), ", ".join(_spell(keys))]))


def _read(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        problems.append(f"{path}: not TOML: {error}")
    except (OSError, UnicodeDecodeError) as error:
        problems.append(f"{path}: cannot be read: {error}")
    return {}


def _policies_in(data: dict[str, Any], path: Path, problems: list[str]) -> list[dict[str, Any]]:
    found = data.get("policy", [])
    if isinstance(found, list) and all(isinstance(policy, dict) for policy in found):
        return found
    problems.append(f"{path}: `policy` must be a list of tables: write [[policy]], with two brackets")
    return []


def _spell(keys: list[int | str]) -> Iterator[str]:
    """List positions count from one, as people do."""
    for key in keys:
        yield f"entry {key + 1}" if isinstance(key, int) else key
