"""Reads topology/ and reports every mistake at once, with file, key and what would be right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tarry.errors import TopologyError
from tarry.topology.mistakes import messages, short, without_echoes
from tarry.topology.model import POLICY_PROBLEMS, Topology
from tarry.topology.source import Source
from tarry.topology.toml_file import BadFileError, read_toml

MAIN_FILE = "tarry.toml"
POLICY_FOLDER = "policies"
MOST_TOLD = 50


def shipped() -> Path:
    """The topology that comes with tarry: a copy inside an installed package, or the folder of this checkout."""
    inside = Path(__file__).parent / "shipped"
    return inside if inside.is_dir() else Path(__file__).parents[3] / "topology"


def main_file(folder: Path) -> Path:
    """Raises if there is none."""
    main = folder / MAIN_FILE
    if not _is_there(main):
        raise TopologyError(
            f"{main}: no such file. Point --topology (or TARRY_TOPOLOGY) at a folder with a {MAIN_FILE}; "
            f"`tarry topology init` writes one, and the shipped one is {shipped()}."
        )
    return main


def load(folder: Path) -> Topology:
    """The whole topology in `folder`, or one TopologyError that lists all that is wrong with it."""
    sources = _Sources(folder)
    try:
        return Topology.model_validate(sources.data).read_from(sources.source)
    except ValidationError as error:
        raise TopologyError(_readable(sorted(sources.explain(error), key=sources.rank))) from None


def _readable(problems: list[str]) -> list[str]:
    """All at once, as long as there is somebody who reads all."""
    more = len(problems) - MOST_TOLD
    return problems if more <= 0 else [*problems[:MOST_TOLD], f"… and {more:,} mistakes more"]


class _Sources:
    """The files as one mapping, with a memory of which file each policy came from."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._origin: list[tuple[Path, str]] = []
        self.data: dict[str, Any] = self._read_all()

    def _read_all(self) -> dict[str, Any]:
        main = main_file(self._folder)
        problems: list[str] = []
        data = _read(main, problems)
        policies = [(main, policy) for policy in _policies_in(data, main, problems)]
        for path in sorted((self._folder / POLICY_FOLDER).glob("*.toml")):
            policies += [(path, policy) for policy in self._policy_file(path, problems)]
        if problems:
            raise TopologyError(_readable(problems))
        self._origin = [(path, short(policy.get("name", "unnamed"))) for path, policy in policies]
        return data | {"policy": [policy for _, policy in policies]}

    def _policy_file(self, path: Path, problems: list[str]) -> list[dict[str, Any]]:
        data = _read(path, problems)
        problems += [
            f"{path}: {short(key)}: has no place here; a file in {POLICY_FOLDER}/ holds [[policy]] tables only"
            for key in data
            if key != "policy"
        ]
        return _policies_in(data, path, problems)

    def explain(self, error: ValidationError) -> Iterator[str]:
        """`topology/policies/10-email.toml: policy email, jitter: …`, one line for each mistake."""
        for problem in without_echoes(error.errors()):
            if problem["type"] == POLICY_PROBLEMS:
                found = (f"{self._place(('policy', place))}: {text}" for place, text in problem["ctx"]["problems"])
                yield from dict.fromkeys(found)
                continue
            for message in messages(problem):
                yield f"{self._place(problem['loc'])}: {message}"

    @property
    def source(self) -> Source:
        return Source(self._folder, tuple(path for path, _ in self._origin), self._folder.absolute() == shipped())

    def rank(self, line: str) -> bool:
        """The main file first; within a file, as found."""
        return not line.startswith(str(self._folder / MAIN_FILE))

    def _place(self, location: Sequence[int | str]) -> str:
        path, keys = self._folder / MAIN_FILE, list(location)
        if keys[:1] == ["policy"] and len(keys) > 1 and isinstance(keys[1], int):
            path, name = self._origin[keys[1]]
            keys = [f"policy {name}", *keys[2:]]
        return ": ".join(filter(None, [str(path), ", ".join(_spell(keys))]))


def _is_there(path: Path) -> bool:
    """A link that leads nowhere is there, and cannot be read."""
    return path.is_symlink() or path.exists()


def _read(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        return read_toml(path)
    except BadFileError as error:
        problems.append(f"{path}: {error}")
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
        yield f"entry {key + 1}" if isinstance(key, int) else short(key)
