"""Reads settings from flags, the environment and a file. Each error is one line: setting, source, remedy."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from tarry.errors import SettingsError
from tarry.settings.masking import is_secret, mask
from tarry.settings.model import Settings
from tarry.topology.toml_file import BadFileError, read_toml

_FIELD_NAMES = {str(info.alias): field for field, info in Settings.model_fields.items()}


def explain(error: ValidationError, origins: Mapping[str, str]) -> Iterator[str]:
    """`HTTP_PORT (environment): `abc` should be a whole number from 0 to 65535`."""
    for problem in error.errors():
        message = problem["msg"].removeprefix("Value error, ").replace("Input should", "should")
        if not problem["loc"]:
            yield message
            continue
        name = str(problem["loc"][0])
        field = _FIELD_NAMES[name]
        value = "" if is_secret(field) else f"`{mask(str(problem['input']))}` "
        yield f"{name} ({origins[field]}): {value}{_number(problem, field) or message}"


def _number(problem: ErrorDetails, field: str) -> str | None:
    """Describes the whole range of a number, so that one correction is enough."""
    if not problem["type"].startswith(("int_", "greater_", "less_")):
        return None
    limits = {
        kind: getattr(part, kind)
        for part in Settings.model_fields[field].metadata
        for kind in ("ge", "le")
        if hasattr(part, kind)
    }
    if "le" in limits:
        return f"should be a whole number from {limits.get('ge', 0)} to {limits['le']}"
    return f"should be a whole number, {limits.get('ge', 0)} or more"


FILE_VARIABLE = "TARRY_SETTINGS"
DEFAULT = "default"
_is_name = re.compile(r"\w[\w.-]*").fullmatch
FLAG = "flag"

NAMES = {field: str(info.alias) for field, info in Settings.model_fields.items()}
"""Maps each field to the name of its environment variable."""
_FIELDS = {name: field for field, name in NAMES.items()} | {field: field for field in NAMES}


def load_settings(settings_file: Path | None = None, **given: object) -> Settings:
    """The settings. Flags in `given` take precedence; None means that a flag was not given."""
    return read_settings(settings_file, **given)[0]


def read_settings(settings_file: Path | None = None, **given: object) -> tuple[Settings, dict[str, str]]:
    """The settings and the source of each. Raises one SettingsError with all problems."""
    problems: list[str] = []
    flags = _by_field({name: value for name, value in given.items() if value is not None}, FLAG, problems)
    file = settings_file or (Path(os.environ[FILE_VARIABLE]) if os.environ.get(FILE_VARIABLE) else None)
    written = _by_field(_read(file, problems), str(file), problems) if file else {}
    origins = {
        field: FLAG
        if field in flags
        else "environment"
        if os.environ.get(name)
        else str(file)
        if field in written
        else DEFAULT
        for field, name in NAMES.items()
    }
    from_file = {field: value for field, value in written.items() if origins[field] == str(file)}
    try:
        settings = Settings(**{NAMES[field]: value for field, value in (from_file | flags).items()})
    except ValidationError as error:
        problems += explain(error, origins)
        settings = None
    if problems or settings is None:
        raise SettingsError("\n".join(problems))
    return settings, origins


def given_from(pairs: list[str]) -> dict[str, str]:
    """`--set NAME=VALUE`, any number of times."""
    wrong = [pair for pair in pairs if "=" not in pair]
    if wrong:
        raise SettingsError("\n".join(f"--set {_name(pair)}: write NAME=VALUE, as in HTTP_PORT=8086" for pair in wrong))
    return {name.strip(): value for name, _, value in (pair.partition("=") for pair in pairs)}


def _read(file: Path, problems: list[str]) -> dict[str, Any]:
    try:
        return read_toml(file)
    except BadFileError as error:
        problems.append(f"{file}: {error}. Correct it, or --settings or {FILE_VARIABLE}.")
    return {}


def _by_field(values: Mapping[str, Any], origin: str, problems: list[str]) -> dict[str, Any]:
    """Accepts keys as in the environment, or in lower case."""
    found = {}
    for key, value in values.items():
        if key in _FIELDS:
            found[_FIELDS[key]] = value
        else:
            close = get_close_matches(key.upper(), NAMES.values(), n=1, cutoff=0.6)
            meant = f"did you mean {close[0]}?" if close else "`tarry config` lists them all"
            problems.append(f"{origin}: {_name(key)}: no such setting; {meant}")
    return found


def _name(given: str) -> str:
    """Hides anything that is not a valid name: it may be a misplaced address with a password."""
    return given if _is_name(given) else "…"
