"""Loads a topology folder, and reports each validation error as one line: what is wrong, and what would be valid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tarry.core.durations import PATTERN, humanise
from tarry.errors import TopologyError
from tarry.topology.model import POLICY_PROBLEMS, Source, Topology
from tarry.topology.toml_file import BadFileError, parse_toml, read_text
from tarry.topology.toml_lines import Lines, find_lines
from tarry.topology.webhooks import POLICY_FILE, place_of_policy

Location = Sequence[int | str]

ALPHABETS = {
    "name": "use small letters, digits, `.`, `_` and `-`, and start with a letter or digit",
    "prefix": "use letters, digits, `.`, `_`, `:` and `-`, 64 at the most",
    "url_env": "use letters, digits and `_`",
}
"""The patterns of these fields, described in words."""

LONGEST_QUOTE = 80


def validation_messages(problem: ErrorDetails) -> list[str]:
    """One message for each mistake; the check of a whole table can find several."""
    location = problem["loc"]
    match problem["type"]:
        case "extra_forbidden":
            return [f"no such key{suggestion(location)}"]
        case "missing":
            return [f"is missing: {description(location)}"]
        case "value_error":
            return problem["msg"].removeprefix("Value error, ").splitlines()
        case "string_pattern_mismatch":
            return [f"`{short(problem['input'])}`: {ALPHABETS.get(str(location[-1]), problem['msg'])}"]
        case "model_type" | "dict_type" | "tuple_type" | "list_type" as kind:
            return [
                f"`{short(problem['input'])}`: write {_form(location, is_list=kind in ('tuple_type', 'list_type'))}"
            ]
        case "less_than_equal" | "greater_than_equal" as kind if _is_duration(location):
            word, limit = ("most", "le") if kind == "less_than_equal" else ("least", "ge")
            given = humanise(problem["input"]) if isinstance(problem["input"], int) else short(problem["input"])
            return [f"`{given}`: at {word} {humanise(problem['ctx'][limit])}"]
        case _:
            return [f"`{short(problem['input'])}`: {problem['msg'].replace('Input should', 'should')}"]


def _form(location: Location, *, is_list: bool) -> str:
    """How a table or a list is written."""
    keys = ", ".join(sorted(known_keys(location)))
    if not keys:
        return 'a list in [ ], as in ["1m", "5m"]' if is_list else "a table in { }"
    return f"a table in {{ }}{', or a list of them' if is_list else ''}, with some of the keys {keys}"


def _is_duration(location: Location) -> bool:
    """Whether the field is written as text with a unit, and checked as milliseconds."""
    model = model_at(location[:-1])
    found = {} if model is None else model.model_json_schema()["properties"].get(str(location[-1]), {})
    return any(part.get("pattern") == PATTERN for part in (found, *found.get("anyOf", ())))


def short(given: object) -> str:
    """Formats any value in one line."""
    text = " ".join(str(given).split())
    return text if len(text) <= LONGEST_QUOTE else text[: LONGEST_QUOTE - 1] + "…"


def without_echoes(problems: list[ErrorDetails]) -> Iterator[ErrorDetails]:
    """Drops errors that only repeat others: a list whose entries are all invalid is also reported as too short."""
    for problem in problems:
        inside = (other["loc"][: len(problem["loc"])] for other in problems if len(other["loc"]) > len(problem["loc"]))
        if problem["type"] != "too_short" or problem["loc"] not in inside:
            yield problem


def suggestion(location: Location) -> str:
    """`; did you mean schedule?`, or a list of all valid keys."""
    keys = sorted(known_keys(location[:-1]))
    close = get_close_matches(str(location[-1]), keys, n=1, cutoff=0.6)
    if close:
        return f"; did you mean `{close[0]}`?"
    return f"; known here: {', '.join(keys)}" if keys else ""


def known_keys(location: Location) -> set[str]:
    model = model_at(location)
    return set() if model is None else {field.alias or name for name, field in model.model_fields.items()}


def description(location: Location) -> str:
    model = model_at(location[:-1])
    fields = {} if model is None else {field.alias or name: field for name, field in model.model_fields.items()}
    found = fields.get(str(location[-1]))
    return (found.description if found is not None else None) or "give it a value"


def model_at(location: Location) -> type[BaseModel] | None:
    """The model that validates the table at this location in the file."""
    model: type[BaseModel] | None = Topology
    for key in location:
        if isinstance(key, int) or model is None:
            continue
        fields = {field.alias or name: field for name, field in model.model_fields.items()}
        model = _model_in(fields[key].annotation) if key in fields else None
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """`Backoff | None` → Backoff, `tuple[Policy, ...]` → Policy."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)


MAIN_FILE = "tarry.toml"
POLICY_FOLDER = "policies"
MOST_TOLD = 50


def shipped() -> Path:
    """The topology that is shipped with tarry: inside an installed package, or the folder of this checkout."""
    inside = Path(__file__).parent / "shipped"
    return inside if inside.is_dir() else Path(__file__).parents[3] / "topology"


def main_file(folder: Path) -> Path:
    """The path of the main file; raises if it does not exist."""
    main = folder / MAIN_FILE
    if not _is_there(main):
        raise TopologyError(
            f"{main}: no such file. Point --topology (or TARRY_TOPOLOGY) at a folder with a {MAIN_FILE}; "
            f"`tarry topology init` writes one, and the shipped one is {shipped()}."
        )
    return main


def load(folder: Path) -> Topology:
    """The whole topology in `folder`; raises one TopologyError that lists everything that is wrong with it."""
    sources = _Sources(folder)
    try:
        return Topology.model_validate(sources.data).read_from(sources.source)
    except ValidationError as error:
        raise TopologyError(_readable(sorted(sources.explain(error), key=sources.rank))) from None


def _readable(problems: list[str]) -> list[str]:
    """All problems up to MOST_TOLD, then a count: nobody reads an endless list."""
    more = len(problems) - MOST_TOLD
    return problems if more <= 0 else [*problems[:MOST_TOLD], f"… and {more:,} more errors"]


_Found = tuple[Path, int, dict[str, Any]]
"""A policy: its file, its position there, and its content."""


class _Sources:
    """The files as one mapping; remembers which file each policy came from."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._origin: list[tuple[Path, int, str]] = []
        """For each policy: its file, its position there, and its name."""
        self._texts: dict[Path, str] = {}
        self._lines: dict[Path, Lines] = {}
        self.data: dict[str, Any] = self._read_all()

    def _read_all(self) -> dict[str, Any]:
        main = main_file(self._folder)
        problems: list[str] = []
        data = self._read(main, problems)
        policies: list[_Found] = [(main, *one) for one in enumerate(_policies_in(data, main, problems))]
        for path in sorted((self._folder / POLICY_FOLDER).glob("*.toml")):
            policies += [(path, *one) for one in enumerate(self._policy_file(path, problems))]
        if data.get("webhook"):
            policies = self._with_webhooks_policy(policies, problems)
        if problems:
            raise TopologyError(_readable(problems))
        self._origin = [(path, place, short(policy.get("name", "unnamed"))) for path, place, policy in policies]
        return data | {"policy": [policy for _, _, policy in policies]}

    def _with_webhooks_policy(self, policies: list[_Found], problems: list[str]) -> list[_Found]:
        """With the shipped policy for the queues of webhooks, unless the files have one of their own."""
        place = place_of_policy([policy for _, _, policy in policies])
        if place is None:
            return policies
        path = shipped() / POLICY_FILE
        added = [(path, *one) for one in enumerate(self._policy_file(path, problems))]
        return [*policies[:place], *added, *policies[place:]]

    def _read(self, path: Path, problems: list[str]) -> dict[str, Any]:
        try:
            self._texts[path] = read_text(path)
            return parse_toml(self._texts[path])
        except BadFileError as error:
            problems.append(f"{path}: {error}")
        return {}

    def _policy_file(self, path: Path, problems: list[str]) -> list[dict[str, Any]]:
        data = self._read(path, problems)
        problems += [
            f"{path}: {short(key)}: has no place here; a file in {POLICY_FOLDER}/ holds [[policy]] tables only"
            for key in data
            if key != "policy"
        ]
        return _policies_in(data, path, problems)

    def explain(self, error: ValidationError) -> Iterator[str]:
        """`topology/policies/10-email.toml:7: policy email, jitter: …`, one line for each mistake."""
        for problem in without_echoes(error.errors()):
            if problem["type"] == POLICY_PROBLEMS:
                found = (f"{self._place(('policy', place))}: {text}" for place, text in problem["ctx"]["problems"])
                yield from dict.fromkeys(found)
                continue
            for message in validation_messages(problem):
                yield f"{self._place(problem['loc'])}: {message}"

    @property
    def source(self) -> Source:
        return Source(self._folder, tuple(path for path, _, _ in self._origin), self._folder.absolute() == shipped())

    def rank(self, line: str) -> bool:
        """Sorts problems in the main file first; within a file, the order stays."""
        return not line.startswith(str(self._folder / MAIN_FILE))

    def _place(self, location: Sequence[int | str]) -> str:
        path, keys, policy = self._folder / MAIN_FILE, list(location), ""
        if keys[:1] == ["policy"] and len(keys) > 1 and isinstance(keys[1], int):
            path, keys[1], policy = self._origin[keys[1]]
        if path not in self._lines:
            self._lines[path] = find_lines(self._texts[path])
        line, found = self._lines[path].find(keys)
        file = f"{path}:{line}" if line else str(path)
        shown = [f"policy {policy}", *found[2:]] if policy else list(found)
        return ": ".join(filter(None, [file, ", ".join(_spell(shown))]))


def _is_there(path: Path) -> bool:
    """A broken link counts as present: it exists and cannot be read."""
    return path.is_symlink() or path.exists()


def _policies_in(data: dict[str, Any], path: Path, problems: list[str]) -> list[dict[str, Any]]:
    found = data.get("policy", [])
    if isinstance(found, list) and all(isinstance(policy, dict) for policy in found):
        return found
    problems.append(f"{path}: `policy` must be a list of tables: write [[policy]], with two brackets")
    return []


def _spell(keys: list[int | str]) -> Iterator[str]:
    """List positions count from one."""
    for key in keys:
        yield f"entry {key + 1}" if isinstance(key, int) else short(key)
