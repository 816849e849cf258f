"""Reads the names of queues and exchanges from topology files that contain errors.

For commands that need only these names. A command that uses wrong names could act on another installation, so the names
count as known only if the files define them unambiguously.
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
    """Replaces a topology whose files contain errors."""

    broker_names: Names
    error: TopologyError
    certain: bool
    """False if the files do not determine the names; these are then the defaults."""


def whole(files: Topology | NamesOnly) -> Topology:
    """For callers that need more than names: returns the topology, or raises the error in the files."""
    if isinstance(files, NamesOnly):
        raise files.error
    return files


def load_names(folder: Path) -> NamesSection | None:
    """The names section of the main file; None if it cannot be determined. Raises if the file does not exist."""
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
    """For text that is not valid TOML as a whole: the table [names], if nothing else in the text refers to names."""
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
