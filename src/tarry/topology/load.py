"""Loads a topology folder, and reports each validation error as one line: what is wrong, and what would be valid."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tarry.core.durations import PATTERN, humanise
from tarry.core.model import WrongKeyError
from tarry.core.policy import Policy
from tarry.errors import TopologyError
from tarry.topology.bases import BaseProblem, Bases, Kind, PolicyTable, ResolvedTable
from tarry.topology.model import POLICY_PROBLEMS, Source, Topology
from tarry.topology.toml_file import BadFileError, parse_toml, read_text, read_toml
from tarry.topology.toml_lines import Lines, find_lines
from tarry.topology.webhooks import POLICY_FILE, place_of_policy

Location = Sequence[int | str]

ALPHABETS = {
    "name": "use small letters, digits, `.`, `_` and `-`, and start with a letter or digit",
    "prefix": "use letters, digits, `.`, `_`, `:` and `-`, 64 at the most",
    "url_env": "use letters, digits and `_`",
    "lane": "use small letters, digits, `_` and `-`, 31 at the most, and start with a letter or digit",
}
"""The patterns of these fields, described in words."""

LONGEST_QUOTE = 80

NUMBERS = {"int_type": "a whole number", "float_type": "a number"}
"""What is wanted, by the type of the error."""


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
        case "model_type" | "dict_type" | "tuple_type" | "list_type" | "int_type" | "float_type" as kind:
            given = json.dumps(problem["input"], default=str) if kind in NUMBERS else problem["input"]
            return [f"`{short(given)}`: write {_form(location, kind)}"]
        case "too_short" if not problem["input"]:
            return ["is empty: give at least one"]
        case "less_than_equal" | "greater_than_equal" as kind if _is_duration(location):
            word, limit = ("most", "le") if kind == "less_than_equal" else ("least", "ge")
            given = humanise(problem["input"]) if isinstance(problem["input"], int) else short(problem["input"])
            return [f"`{given}`: at {word} {humanise(problem['ctx'][limit])}"]
        case _:
            return [f"`{short(problem['input'])}`: {problem['msg'].replace('Input should', 'should')}"]


def _form(location: Location, kind: str) -> str:
    """How a number, a table or a list is written."""
    if kind in NUMBERS:
        return f"{NUMBERS[kind]}, without quotation marks"
    is_list = kind in ("tuple_type", "list_type")
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
    found = set() if model is None else {field.alias or name for name, field in model.model_fields.items()}
    return found if location else {*found, BASE}


def description(location: Location) -> str:
    model = model_at(location[:-1])
    fields = {} if model is None else {field.alias or name: field for name, field in model.model_fields.items()}
    found = fields.get(str(location[-1]))
    return (found.description if found is not None else None) or "give it a value"


def model_at(location: Location) -> type[BaseModel] | None:
    """The model that validates the table at this location in the file."""
    model: type[BaseModel] | None = Topology
    for key in ("policy" if key == BASE else key for key in location):
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
BASE_FOLDER = "bases"
"""In the shipped topology: the bases that can be extended without being written in the user's files."""

_KINDS: tuple[Kind, ...] = ("policy", "base")

BASE = "base"
"""The table of a base. It is resolved before the topology is validated, so no model has it."""

FILLER = {"max_retries": 0}
"""What a base may leave to the policies that extend it, besides its delays."""

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


def with_changes(topology: Topology, text: str, label: str) -> Topology:
    """The topology with the policies and bases of a file in place of those that have their names. Policies with new
    names come first. Raises one TopologyError that lists everything that is wrong; `label` names the file in it.
    """
    sources = _Changes(topology, text, Path(label))
    try:
        return Topology.model_validate(sources.data).read_from(sources.source)
    except ValidationError as error:
        raise TopologyError(_readable(list(sources.explain(error)))) from None


def _readable(problems: list[str]) -> list[str]:
    """All problems up to MOST_TOLD, then a count: nobody reads an endless list."""
    more = len(problems) - MOST_TOLD
    return problems if more <= 0 else [*problems[:MOST_TOLD], f"… and {more:,} more errors"]


class _Sources:
    """The files as one mapping; remembers which table each value came from."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._texts: dict[Path, str] = {}
        self._lines: dict[Path, Lines] = {}
        self._policies: tuple[ResolvedTable, ...] = ()
        self._bases: tuple[ResolvedTable, ...] = ()
        self.data: dict[str, Any] = self._read()

    def _read(self) -> dict[str, Any]:
        main = main_file(self._folder)
        problems: list[str] = []
        data = self._file(main, problems)
        policies = _tables_in(data, "policy", main, problems)
        bases = _tables_in(data, "base", main, problems)
        for path in sorted((self._folder / POLICY_FOLDER).glob("*.toml")):
            found = self._policy_file(path, problems)
            policies += _tables_in(found, "policy", path, problems)
            bases += _tables_in(found, "base", path, problems)
        if data.get("webhook"):
            policies = self._with_webhooks_policy(policies, problems)
        if not problems:
            self._resolve(policies, bases, problems)
        if problems:
            raise TopologyError(_readable(problems))
        left = {key: value for key, value in data.items() if key != BASE}
        return left | {"policy": [one.data for one in self._policies]}

    def _resolve(self, policies: list[PolicyTable], bases: list[PolicyTable], problems: list[str]) -> None:
        """Adds to each policy and base what it extends."""
        own, found = [*policies, *bases], list[BaseProblem]()
        extends = any("extends" in table.data for table in own)
        known = Bases(own, self._shipped_bases(problems) if extends else ())
        self._policies = tuple(known.resolve(table, found) for table in policies)
        self._bases = tuple(known.resolve(table, found) for table in bases)
        problems += [
            f"{self._place_in(one.table, [one.key])}: {one.message}"
            for one in sorted(found, key=lambda one: one.table.path != self._folder / MAIN_FILE)
        ]
        if not problems:
            problems += self._base_problems()

    def _shipped_bases(self, problems: list[str]) -> list[PolicyTable]:
        found: list[PolicyTable] = []
        for path in _base_files():
            found += _tables_in(self._file(path, problems), "base", path, problems, is_shipped=True)
        return found

    def _base_problems(self) -> Iterator[str]:
        """A base is checked also where nothing extends it. What only a policy needs may be missing."""
        names = {one.table.name for one in self._policies}
        for one in self._bases:
            if one.table.name in names:
                taken = f"{short(one.table.name)!r} is also the name of another policy or base: names must differ"
                yield f"{self._place_in(one.table, ['name'])}: {taken}"
            names.add(one.table.name)
            if "match" in one.table.data:
                no_match = "a base applies to no messages: `match` belongs in the policies that extend it"
                yield f"{self._place_in(one.table, ['match'])}: {no_match}"
            filler = FILLER if one.data.keys() & {"schedule", "backoff"} else FILLER | {"schedule": ["1s"]}
            if "max_retries_ceiling" in one.data:
                filler = filler | {"max_retries": one.data["max_retries_ceiling"]}
            try:
                Policy.model_validate(filler | one.data)
            except ValidationError as error:
                for problem in without_echoes(error.errors()):
                    location = [BASE, 0, *problem["loc"]]
                    where = _wrong_key(problem["loc"], _keys(problem), one)
                    for message in validation_messages({**problem, "loc": tuple(location)}):
                        yield f"{self._place_in(one.origin(where), where)}: {message}"

    def _with_webhooks_policy(self, policies: list[PolicyTable], problems: list[str]) -> list[PolicyTable]:
        """With the shipped policy for the queues of webhooks, unless the files have one of their own."""
        place = place_of_policy([table.data for table in policies])
        if place is None:
            return policies
        path = shipped() / POLICY_FILE
        added = _tables_in(self._policy_file(path, problems), "policy", path, problems, is_shipped=True)
        return [*policies[:place], *added, *policies[place:]]

    def _file(self, path: Path, problems: list[str]) -> dict[str, Any]:
        try:
            if path not in self._texts:
                self._texts[path] = read_text(path)
            return parse_toml(self._texts[path])
        except BadFileError as error:
            problems.append(f"{path}: {error}")
        return {}

    def _policy_file(self, path: Path, problems: list[str]) -> dict[str, Any]:
        data = self._file(path, problems)
        problems += [
            f"{path}: {short(key)}: has no place here; a file in {POLICY_FOLDER}/ holds [[policy]] and [[base]] tables"
            for key in data
            if key not in ("policy", BASE)
        ]
        return data

    def explain(self, error: ValidationError) -> Iterator[str]:
        """`topology/policies/10-email.toml:7: policy email, jitter: …`, one line for each mistake."""
        found: list[str] = []
        for problem in without_echoes(error.errors()):
            if problem["type"] == POLICY_PROBLEMS:
                found += (
                    f"{self._place_of_key(('policy', place), keys)}: {text}"
                    for place, keys, text in problem["ctx"]["problems"]
                )
                continue
            where = self._place_of_key(problem["loc"], _keys(problem))
            for message in validation_messages(problem):
                found.append(f"{where}: {message}{self._extends(problem['loc'])}")
        yield from dict.fromkeys(found)

    @property
    def source(self) -> Source:
        files = tuple(one.table.path for one in self._policies)
        is_shipped = self._folder.absolute() == shipped()
        return Source(self._folder, files, is_shipped, self._policies, self._bases)

    def rank(self, line: str) -> bool:
        """Sorts problems in the main file first; within a file, the order stays."""
        return not line.startswith(str(self._folder / MAIN_FILE))

    def _place(self, location: Location) -> str:
        if location[:1] == ("policy",) and len(location) > 1 and isinstance(location[1], int):
            return self._place_in(self._policies[location[1]].origin(location[2:]), location[2:])
        line, found = self._lines_of(self._folder / MAIN_FILE).find(location)
        return _placed(self._folder / MAIN_FILE, line, found)

    def _place_of_key(self, table: Location, keys: Location) -> str:
        """The place of a key of a policy that is wrong beside others; of the policy, if the key is inherited."""
        if table[:1] != ("policy",) or len(table) < 2 or not isinstance(table[1], int):  # noqa: PLR2004
            return self._place((*table, *keys))
        return self._place((*table[:2], *_wrong_key(table[2:], keys, self._policies[table[1]])))

    def _place_in(self, table: PolicyTable, location: Location) -> str:
        """`topology/policies/10-email.toml:7: policy email, jitter`: in the table in which the value is written."""
        line, found = self._lines_of(table.path).find([table.kind, table.place, *location])
        keys = location if line is None else found[2:]
        return _placed(table.path, line, [f"{table.kind} {short(table.name)}", *keys])

    def _extends(self, location: Location) -> str:
        """What a policy as a whole extends: keys of both may contradict each other."""
        if location[:1] != ("policy",) or len(location) != 2 or not isinstance(location[1], int):  # noqa: PLR2004
            return ""
        names = ", ".join(short(base.name) for base in self._policies[location[1]].bases)
        return f" (with what it inherits from {names})" if names else ""

    def _lines_of(self, path: Path) -> Lines:
        if path not in self._lines:
            if path not in self._texts:
                self._file(path, [])
            self._lines[path] = find_lines(self._texts.get(path, ""))
        return self._lines[path]


class _Changes(_Sources):
    """The files of a topology that was loaded before, and one file with changes of it."""

    def __init__(self, topology: Topology, text: str, label: Path) -> None:
        self._topology, self._text, self._label = topology, text, label
        super().__init__(topology.source.folder if topology.source is not None else Path())

    def _read(self) -> dict[str, Any]:
        problems: list[str] = []
        self._texts[self._label] = self._text
        data = self._policy_file(self._label, problems)
        new = [table for kind in _KINDS for table in _tables_in(data, kind, self._label, problems)]
        if not problems and not new:
            problems.append(f"{self._label}: has no [[policy]] and no [[base]]: write those that are to change")
        if problems:
            raise TopologyError(_readable(problems))
        dumped = self._topology.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        source = self._topology.source
        old = source.policies if source is not None else _unnamed(dumped["policy"])
        as_they_are = {one.table.name: (one, policy) for one, policy in zip(old, dumped["policy"], strict=True)}
        policies = _changed([one.table for one in old], new, "policy")
        bases = _changed([one.table for one in source.bases] if source is not None else [], new, "base")
        self._resolve(policies, bases, problems)
        if problems:
            raise TopologyError(_readable(problems))
        return dumped | {"policy": [self._data_of(one, as_they_are) for one in self._policies]}

    def _data_of(
        self, resolved: ResolvedTable, as_they_are: dict[object, tuple[ResolvedTable, dict[str, Any]]]
    ) -> dict[str, Any]:
        """Unless it changes, as it applies: environment variables may have changed it."""
        before, policy = as_they_are.get(resolved.table.name, (None, {}))
        return policy if before is not None and before.data == resolved.data else resolved.data


def _changed(old: list[PolicyTable], new: list[PolicyTable], kind: Kind) -> list[PolicyTable]:
    found = {table.name: table for table in new if table.kind == kind}
    names = {table.name for table in old}
    return [
        *(table for table in new if table.kind == kind and table.name not in names),
        *(found.get(table.name, table) for table in old),
    ]


def _unnamed(policies: list[dict[str, Any]]) -> tuple[ResolvedTable, ...]:
    """Policies that were made without files."""
    tables = [PolicyTable("policy", Path("topology"), place, data) for place, data in enumerate(policies)]
    return tuple(ResolvedTable(table, dict(table.data)) for table in tables)


def shipped_bases() -> list[PolicyTable]:
    """The bases that can be extended without being written in the user's files."""
    return [table for path in _base_files() for table in _tables_in(read_toml(path), "base", path, [], is_shipped=True)]


def _base_files() -> list[Path]:
    return sorted((shipped() / BASE_FOLDER).glob("*.toml"))


def _placed(path: Path, line: int | None, keys: Sequence[int | str]) -> str:
    file = f"{path}:{line}" if line else str(path)
    return ": ".join(filter(None, [file, ", ".join(_spell(keys))]))


def _keys(problem: ErrorDetails) -> Location:
    """The keys that the check of a whole table names."""
    error = problem.get("ctx", {}).get("error")
    return error.keys if isinstance(error, WrongKeyError) else ()


def _wrong_key(table: Location, keys: Location, resolved: ResolvedTable) -> Location:
    """The keys below the table, unless they are inherited: then it is the table itself that does not go with them."""
    where = (*table, *keys)
    return where if resolved.origin(where) is resolved.origin(table) else table


def _is_there(path: Path) -> bool:
    """A broken link counts as present: it exists and cannot be read."""
    return path.is_symlink() or path.exists()


def _tables_in(
    data: dict[str, Any], kind: Kind, path: Path, problems: list[str], *, is_shipped: bool = False
) -> list[PolicyTable]:
    found = data.get(kind, [])
    if isinstance(found, list) and all(isinstance(table, dict) for table in found):
        return [PolicyTable(kind, path, place, table, is_shipped) for place, table in enumerate(found)]
    problems.append(f"{path}: `{kind}` must be a list of tables: write [[{kind}]], with two brackets")
    return []


def _spell(keys: Sequence[int | str]) -> Iterator[str]:
    """List positions count from one."""
    for key in keys:
        yield f"entry {key + 1}" if isinstance(key, int) else short(key)
