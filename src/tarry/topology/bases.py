"""Resolves `extends`: which values a policy takes from its base. Pure: it works on tables as TOML has them.

A value that the policy has replaces that of its base, lists included. The tables in MERGED are merged key by key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from tarry.core.policy import Policy

Kind = Literal["policy", "base"]
Keys = tuple[str, ...]

OWN = frozenset({"name", "description", "match", "extends", "without"})
"""Never inherited: they say what the policy is, and which messages it applies to."""

MERGED = frozenset({"adaptive", "backoff", "breaker", "eligibility"})
"""Tables that are merged key by key."""

EITHER: Mapping[str | None, tuple[frozenset[str], ...]] = {
    None: (frozenset({"schedule", "backoff"}),),
    "eligibility": (frozenset({"url", "url_env"}),),
}
"""Keys of which a table has one: that of the policy replaces the other one of its base."""

_ALIASES = {name: found.alias or name for name, found in Policy.model_fields.items()}
INHERITED = frozenset(_ALIASES.values()) - OWN


@dataclass(frozen=True, slots=True)
class PolicyTable:
    """A [[policy]] or a [[base]], as its file has it."""

    kind: Kind
    path: Path
    place: int
    """Its position in the file, among those of its kind."""
    data: Mapping[str, Any]
    is_shipped: bool = False

    @property
    def name(self) -> object:
        return self.data.get("name", "unnamed")


@dataclass(frozen=True, slots=True)
class ResolvedTable:
    """A table with everything that it inherits."""

    table: PolicyTable
    data: dict[str, Any]
    inherited: Mapping[Keys, PolicyTable] = field(default_factory=dict)
    """The table that each inherited value is written in."""
    bases: tuple[PolicyTable, ...] = ()
    """What it extends, and what that extends, in this order."""

    def origin(self, keys: Sequence[int | str]) -> PolicyTable:
        """The table in which the value of this key is written."""
        path, found = Keys(), self.table
        for key in keys:
            if isinstance(key, str):
                path = (*path, key if path else _ALIASES.get(key, key))
            found = self.inherited.get(path, found)
        return found


@dataclass(frozen=True, slots=True)
class BaseProblem:
    """What is wrong with `extends` or `without` of a table."""

    table: PolicyTable
    key: str
    message: str


class Bases:
    """Everything that can be extended, by name: the user's policies and bases, then those that are shipped."""

    def __init__(self, own: Sequence[PolicyTable], shipped: Sequence[PolicyTable]) -> None:
        self._own = {table.name: table for table in reversed(own) if isinstance(table.name, str)}
        self._shipped = {table.name: table for table in shipped}

    def resolve(self, table: PolicyTable, problems: list[BaseProblem]) -> ResolvedTable:
        """The table with what it inherits; without it if there is a problem, which is added to the list."""
        chain = [table]
        while (extends := chain[-1].data.get("extends")) is not None:
            found = self._base(chain[-1], extends)
            if isinstance(found, str):
                problems += [BaseProblem(chain[-1], "extends", found)] if chain == [table] else []
                return ResolvedTable(table, dict(table.data))
            if found in chain:
                circle = [*chain[chain.index(found) :], found]
                if found is table:
                    names = " → ".join(str(one.name) for one in circle)
                    problems.append(BaseProblem(table, "extends", f"extends itself: {names}"))
                return ResolvedTable(table, dict(table.data))
            chain.append(found)
        problems += _without_problems(table)
        resolved = ResolvedTable(chain[-1], dict(chain[-1].data))
        for one in reversed(chain[:-1]):
            resolved = _extended(one, resolved)
        return resolved

    def _base(self, table: PolicyTable, extends: object) -> PolicyTable | str:
        """The base of this name, or what is wrong. A policy may extend the shipped base that has its own name."""
        if not isinstance(extends, str):
            return "must be the name of one policy or base, in quotation marks"
        found = self._own.get(extends)
        if found is None or (found == table and extends in self._shipped):
            found = self._shipped.get(extends)
        if found is not None:
            return found
        known = sorted({str(name) for name in (*self._own, *self._shipped)} - {str(table.name)})
        close = get_close_matches(extends, known, n=1, cutoff=0.6)
        hint = f"did you mean `{close[0]}`?" if close else f"there are: {', '.join(known)}"
        return f"there is no policy or base `{extends}`; {hint}"


def _without_problems(table: PolicyTable) -> Iterator[BaseProblem]:
    without = table.data.get("without")
    if without is None:
        return
    if table.data.get("extends") is None:
        yield BaseProblem(table, "without", "says what is not taken from a base: it needs `extends`")
    names = without if isinstance(without, list) else [without]
    for name in names:
        if name not in INHERITED:
            close = get_close_matches(str(name), sorted(INHERITED), n=1, cutoff=0.6)
            hint = f"did you mean `{close[0]}`?" if close else f"known here: {', '.join(sorted(INHERITED))}"
            yield BaseProblem(table, "without", f"`{name}` is no key that is inherited; {hint}")


def _extended(table: PolicyTable, base: ResolvedTable) -> ResolvedTable:
    own = {_ALIASES.get(key, key): value for key, value in table.data.items()}
    without = own.get("without")
    left_out = OWN | {str(name) for name in (without if isinstance(without, list) else [])} | _replaced(None, own)
    data: dict[str, Any] = {}
    inherited: dict[Keys, PolicyTable] = {}
    for key, value in base.data.items():
        name = _ALIASES.get(key, key)
        if name in left_out:
            continue
        if name not in own:
            data[name] = value
            inherited[(name,)] = base.origin((name,))
            if isinstance(value, dict):
                inherited |= {(name, part): base.origin((name, part)) for part in value}
        elif name in MERGED and isinstance(value, dict) and isinstance(own[name], dict):
            parts = {part: of for part, of in value.items() if part not in own[name]}
            parts = {part: of for part, of in parts.items() if part not in _replaced(name, own[name])}
            own[name] = parts | own[name]
            inherited |= {(name, part): base.origin((name, part)) for part in parts}
    return ResolvedTable(table, data | own, inherited, (base.table, *base.bases))


def _replaced(name: str | None, own: Mapping[str, Any]) -> frozenset[str]:
    """What of a base has no effect beside these keys."""
    return frozenset[str]().union(*(keys - own.keys() for keys in EITHER.get(name, ()) if keys & own.keys()))
