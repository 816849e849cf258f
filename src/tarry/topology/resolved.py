"""Policies and bases as they apply: every value, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

from tarry.core.policy import Policy
from tarry.errors import NotFoundError
from tarry.topology.bases import Keys, PolicyTable, ResolvedTable
from tarry.topology.load import shipped_bases
from tarry.topology.model import Topology
from tarry.topology.toml_file import BadFileError, read_text, toml_value
from tarry.topology.toml_lines import Lines, find_lines

_ORDER = {found.alias or name: place for place, (name, found) in enumerate(Policy.model_fields.items())}


class ValueOrigin(StrEnum):
    """Where a value comes from."""

    OWN = "own"
    INHERITED = "inherited"
    ENVIRONMENT = "environment"
    """An environment variable that changes the policy called `default`."""
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a policy or base. Those of tables have a key of their own each, as in `backoff.base`."""

    key: str
    value: Any
    """As TOML has it."""
    origin: ValueOrigin
    table: str | None = None
    """The policy or base in which it is written."""
    file: str | None = None
    line: int | None = None
    is_shipped: bool = False


@dataclass(frozen=True, slots=True)
class Shown:
    """A policy or a base with all its values."""

    kind: str
    """`policy` or `base`."""
    name: str
    file: str
    line: int | None
    is_shipped: bool
    extends: list[str]
    """What it extends, and what that extends."""
    used_by: list[str]
    """The policies and bases that extend it, directly or not."""
    values: list[Value]

    def value(self, key: str) -> Any:
        return next((one.value for one in self.values if one.key == key), None)

    def toml(self) -> str:
        """A table to paste, with everything that it inherits, and without defaults."""
        tables: dict[str, dict[str, Any]] = {}
        keys: dict[str, Any] = {}
        for one in self.values:
            if one.origin is ValueOrigin.DEFAULT or one.key in ("extends", "without"):
                continue
            name, _, part = one.key.partition(".")
            if part:
                keys[name] = tables.setdefault(name, {})
                tables[name][part] = one.value
            else:
                keys[name] = one.value
        return "\n".join([f"[[{self.kind}]]", *(f"{key} = {toml_value(value)}" for key, value in keys.items())]) + "\n"


def shown_policies(topology: Topology) -> list[Shown]:
    """The policies in order, then the user's own bases, then those that are shipped and not replaced."""
    source = topology.source
    if source is None:
        return []
    found = [
        _shown(table, source.policies, policy) for policy, table in zip(topology.policies, source.policies, strict=True)
    ]
    names = {one.name for one in found} | {str(one.table.name) for one in source.bases}
    others = [ResolvedTable(one, dict(one.data)) for one in shipped_bases() if one.name not in names]
    everything = (*source.policies, *source.bases)
    return [*found, *(_shown(table, everything, None) for table in (*source.bases, *others))]


def shown_policy(topology: Topology, name: str) -> Shown:
    """The policy or base of this name."""
    known = {one.name: one for one in shown_policies(topology)}
    if name in known:
        return known[name]
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(known)}."
    raise NotFoundError(f"There is no policy or base {name!r}. {hint}")


def _shown(resolved: ResolvedTable, others: tuple[ResolvedTable, ...], policy: Policy | None) -> Shown:
    table = resolved.table
    return Shown(
        kind=table.kind,
        name=str(table.name),
        file=str(table.path),
        line=_line(table, ()),
        is_shipped=table.is_shipped,
        extends=[str(base.name) for base in resolved.bases],
        used_by=[str(other.table.name) for other in others if table in other.bases],
        values=sorted(_values(resolved, policy), key=lambda one: _ORDER.get(one.key.partition(".")[0], len(_ORDER))),
    )


def _values(resolved: ResolvedTable, policy: Policy | None) -> Iterator[Value]:
    written = dict(_flat(resolved.data))
    changed = dict(_flat(_dumped(policy))) if policy is not None else {}
    in_files = dict(_flat(_dumped(Policy.model_validate(resolved.data)))) if policy is not None else {}
    for keys, value in written.items():
        if changed.get(keys) != in_files.get(keys):
            continue
        table = resolved.origin(keys)
        origin = ValueOrigin.OWN if table is resolved.table else ValueOrigin.INHERITED
        yield Value(
            ".".join(keys), value, origin, str(table.name), str(table.path), _line(table, keys), table.is_shipped
        )
    for keys, value in changed.items():
        if value != in_files.get(keys):
            yield Value(".".join(keys), value, ValueOrigin.ENVIRONMENT)
        elif keys not in written and keys[:1] not in written and value not in (None, [], {}):
            yield Value(".".join(keys), value, ValueOrigin.DEFAULT)


def _dumped(policy: Policy) -> dict[str, Any]:
    return policy.model_dump(mode="json", by_alias=True)


def _flat(data: Mapping[str, Any]) -> Iterator[tuple[Keys, Any]]:
    for key, value in data.items():
        if isinstance(value, Mapping):
            yield from (((key, part), of) for part, of in value.items())
        else:
            yield (key,), value


def _line(table: PolicyTable, keys: Keys) -> int | None:
    return _lines(table.path).find([table.kind, table.place, *keys]).line


@lru_cache(maxsize=64)
def _lines(path: Path) -> Lines:
    """Files do not change while a command runs."""
    try:
        return find_lines(read_text(path))
    except BadFileError:
        return Lines({})
