"""Topology files that hold a mistake, for commands that need no more of them than the names of queues and exchanges.

A command that acts on wrong names could act on another installation. So the names count as known only if the files
leave no doubt about them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tarry.core.names import Names
from tarry.errors import TopologyError
from tarry.topology.load import main_file
from tarry.topology.model import NamesSection, Topology
from tarry.topology.toml_file import BadFileError, parse_toml, read_text

_COMMENT = re.compile(r"#.*")
_HEADER = re.compile(r"(?m)^[ \t]*\[[ \t]*names[ \t]*\][ \t]*$")
_NEXT_TABLE = re.compile(r"(?m)^[ \t]*\[")
_ANY_NAME = re.compile(r"\b(?:names|prefix|scheduled|review)\b")
_KEYS = {field.alias or name for name, field in Topology.model_fields.items()}


@dataclass(frozen=True, slots=True)
class NamesOnly:
    """In place of a topology whose files hold mistakes."""

    broker_names: Names
    error: TopologyError
    certain: bool
    """False: the files do not tell the names, and these are the defaults."""


def whole(files: Topology | NamesOnly) -> Topology:
    """For what needs more than names: raises what is wrong with the files."""
    if isinstance(files, NamesOnly):
        raise files.error
    return files


def load_names(folder: Path) -> NamesSection | None:
    """What the main file says of names; None if that cannot be told. Raises if there is no such file."""
    try:
        text = read_text(main_file(folder))
        found = _names_in(text)
        return None if found is None else NamesSection.model_validate(found)
    except (BadFileError, ValidationError):
        return None


def _names_in(text: str) -> dict[str, Any] | None:
    try:
        data = parse_toml(text)
    except BadFileError:
        return _names_in_part(text)
    if "names" in data:
        return dict(data["names"]) if isinstance(data["names"], dict) else None
    return {} if set(data) <= _KEYS else None  # an unknown key may be a misspelt `names`


def _names_in_part(text: str) -> dict[str, Any] | None:
    """Of a text that is no TOML as a whole: the table [names], if it is the only place that has to do with names."""
    text = _COMMENT.sub("", text)
    if not _ANY_NAME.search(text):
        return {}
    _, *tables = _HEADER.split(text)
    if len(tables) != 1 or text.count("names") != 1:
        return None
    try:
        return parse_toml(_NEXT_TABLE.split(tables[0])[0])
    except BadFileError:
        return None
