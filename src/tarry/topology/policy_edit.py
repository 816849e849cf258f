"""Changes values of one policy in its file, and nothing else: comments and formatting stay.

The result is loaded before the file is written: every policy must be as it was, except for the change. A change that
cannot be made like this is refused.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

from tarry.core.policy import Policy
from tarry.errors import SettingsError, TopologyError
from tarry.topology.bases import PolicyTable
from tarry.topology.load import BASE_FOLDER, MAIN_FILE, POLICY_FOLDER, load
from tarry.topology.model import Topology
from tarry.topology.toml_file import BadFileError, read_text, toml_value
from tarry.topology.toml_lines import LineSpan, Spans, find_spans
from tarry.topology.toml_lines import Path as Keys

RULES = "errors"
"""The list at whose beginning entries are added; other values are replaced."""


@dataclass(frozen=True, slots=True)
class FileEdit:
    """A file before and after a change."""

    path: Path
    before: str
    after: str

    def diff(self) -> str:
        """As `diff -u` prints it."""
        before, after = (text.splitlines(keepends=True) for text in (self.before, self.after))
        lines = unified_diff(before, after, str(self.path), str(self.path))
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)

    def write(self) -> None:
        """All of it or nothing; refused if somebody has changed the file meanwhile."""
        path = self.path.resolve()
        if _text(self.path) != self.before:
            raise SettingsError(f"{self.path}: has changed meanwhile. Nothing was written: run the command again.")
        try:
            _replace(path, self.after)
        except OSError as error:
            raise SettingsError(f"{self.path}: cannot be written: {error.strerror}. It is as it was.") from None


def edit_policy(folder: Path, name: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> FileEdit:
    """The edit that gives these keys of a policy their new values; raises SettingsError if there is none.

    `was` are the values for which it was meant. Of `errors`, those that are new come before all that there are by now.
    A change that the policy has already is refused too.
    """
    topology = load(folder)
    table, policy = _table(topology, name)
    found = written_policy(policy)
    if RULES in now:
        added = [one for one in now[RULES][: len(now[RULES]) - len(was[RULES])] if one not in found[RULES]]
        was, now = {**was, RULES: found[RULES]}, {**now, RULES: [*added, *found[RULES]]}
    if all(found.get(key) == value for key, value in now.items()):
        raise SettingsError(f"{table.path}: the policy {name} has this change already.")
    different = [key for key, value in was.items() if found.get(key) != value]
    if different:
        raise SettingsError(
            f"{table.path}: {', '.join(different)} of the policy {name} is not what the advice was made for. "
            "Compare the files with those of the service."
        )
    before = _text(table.path)
    after = before
    for keys, value in _smallest(was, now):
        after = _Editor(after, ("policy", table.place), table.path).changed(keys, value)
    edit = FileEdit(table.path, before, after)
    _check(topology, folder, edit, name, now)
    return edit


def _table(topology: Topology, name: str) -> tuple[PolicyTable, Policy]:
    source = topology.source
    for policy, one in zip(topology.policies, source.policies if source else (), strict=False):
        if policy.name == name:
            if one.table.is_shipped or (source is not None and source.is_shipped):
                raise SettingsError(
                    f"The policy {name} is shipped with tarry: `tarry topology init` writes a folder of your own."
                )
            return one.table, policy
    raise SettingsError(f"There is no policy {name} in these files: give their folder with --topology.")


def _smallest(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[tuple[Sequence[str], Any]]:
    """The values to write: of a table only those that change."""
    found: list[tuple[Sequence[str], Any]] = []
    for key, value in now.items():
        old = was.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            found += [((key, part), of) for part, of in value.items() if of != old.get(part)]
        elif value != old:
            found.append(((key,), value))
    return found


@dataclass(slots=True)
class _Editor:
    """One change to a text."""

    text: str
    table: Keys
    path: Path

    def changed(self, keys: Sequence[str], value: Any) -> str:
        spans = find_spans(self.text)
        span = spans.values.get((*self.table, *keys))
        if self.table not in spans.tables:
            raise self._refusal("it does not write this policy as [[policy]]")
        if tuple(keys) == (RULES,):
            return self._with_rules(spans, span, value)
        if span is not None:
            return self._replaced(span, toml_value(value), ".".join(keys))
        if any(one[: len(self.table) + 1] == (*self.table, keys[0]) for one in spans.values):
            raise self._refusal(f"{'.'.join(keys)} is inherited, and the rest of {keys[0]} is not")
        return self._added(spans, ".".join(keys), toml_value(value))

    def _with_rules(self, spans: Spans, span: LineSpan | None, rules: list[dict[str, Any]]) -> str:
        tables = spans.tables.get((*self.table, RULES, 0))
        if tables is not None:
            return self._with_table(tables, rules[0])
        if span is None:
            newline, indent = self._newline, "    "
            lines = [f"{indent}{toml_value(one)}," for one in rules]
            return self._added(spans, RULES, newline.join(["[", *lines, "]"]))
        first = spans.values.get((*self.table, RULES, 0))
        if first is None:
            return self._replaced(span, f"[{toml_value(rules[0])}]", RULES)
        line_end = self.text.find("\n", span.start, first.start)
        if line_end < 0:
            return f"{self.text[: first.start]}{toml_value(rules[0])}, {self.text[first.start :]}"
        indent = self.text[self.text.rfind("\n", 0, first.start) + 1 : first.start]
        line = f"{indent}{toml_value(rules[0])},{self._newline}"
        return self.text[: line_end + 1] + line + self.text[line_end + 1 :]

    def _replaced(self, span: LineSpan, value: str, key: str) -> str:
        if "#" in self.text[span.start : span.end]:
            raise self._refusal(f"{key} has a comment within")
        return self.text[: span.start] + value + self.text[span.end :]

    def _with_table(self, tables: LineSpan, rule: dict[str, Any]) -> str:
        """Before the first [[policy.errors]]."""
        newline = self._newline
        indent = self.text[self.text.rfind("\n", 0, tables.start) + 1 : tables.start]
        lines = [f"[[policy.{RULES}]]", *(f"{key} = {toml_value(value)}" for key, value in rule.items())]
        block = newline.join(f"{indent}{line}" if place else line for place, line in enumerate(lines))
        return f"{self.text[: tables.start]}{block}{newline}{newline}{indent}{self.text[tables.start :]}"

    def _added(self, spans: Spans, key: str, value: str) -> str:
        """After the last key of the table itself, on a line of its own."""
        end = self.text.find("\n", spans.tables[self.table].end)
        newline = self._newline
        if end < 0:
            return f"{self.text}{newline}{key} = {value}{newline}"
        return f"{self.text[: end + 1]}{key} = {value}{newline}{self.text[end + 1 :]}"

    @property
    def _newline(self) -> str:
        return "\r\n" if "\r\n" in self.text else "\n"

    def _refusal(self, why: str) -> SettingsError:
        return SettingsError(f"{self.path}: {why}, so the change cannot be made exactly. Change it by hand.")


def _check(topology: Topology, folder: Path, edit: FileEdit, name: str, now: Mapping[str, Any]) -> None:
    """Loads a copy of the folder with the edit: it must have the change, and no other difference."""
    with tempfile.TemporaryDirectory() as made:
        copy = Path(made)
        for path in (
            folder / MAIN_FILE,
            *(folder / POLICY_FOLDER).glob("*.toml"),
            *(folder / BASE_FOLDER).glob("*.toml"),
        ):
            target = copy / path.relative_to(folder)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target)
        (copy / edit.path.relative_to(folder)).write_text(edit.after, encoding="utf-8", newline="")
        try:
            changed = load(copy)
        except TopologyError as error:
            raise _not_exact(edit.path, str(error).replace(made, str(folder))) from None
    expected = {one.name: written_policy(one) for one in topology.policies}
    expected[name] |= now
    if {one.name: written_policy(one) for one in changed.policies} != expected or _others(changed) != _others(topology):
        raise _not_exact(edit.path, "it would change something else too")


def _others(topology: Topology) -> dict[str, Any]:
    return topology.model_dump(mode="json", by_alias=True, exclude={"policies"})


def _not_exact(path: Path, why: str) -> SettingsError:
    return SettingsError(f"{path}: the change cannot be made exactly: {why}. Change it by hand.")


def written_policy(policy: Policy) -> dict[str, Any]:
    """All values as TOML has them, except for what is the default of a rule."""
    found = policy.model_dump(mode="json", by_alias=True)
    found[RULES] = [one.model_dump(mode="json", by_alias=True, exclude_defaults=True) for one in policy.errors]
    return found


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except BadFileError as error:
        raise SettingsError(f"{path}: {error}.") from None


def _replace(path: Path, text: str) -> None:
    """Through a file beside it, so that a reader, or a crash, finds the old text or the new one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        shutil.copymode(path, name)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
