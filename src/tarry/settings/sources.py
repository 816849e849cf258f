"""Where settings come from: a flag beats the environment, that beats the file, and that beats the default."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tarry.errors import SettingsError
from tarry.settings.mistakes import explain
from tarry.settings.model import Settings
from tarry.topology.toml_file import BadFileError, read_toml

FILE_VARIABLE = "TARRY_SETTINGS"
DEFAULT = "default"
_is_name = re.compile(r"\w[\w.-]*").fullmatch
FLAG = "flag"

NAMES = {field: str(info.alias) for field, info in Settings.model_fields.items()}
"""Field → the name that it has in the environment."""
_FIELDS = {name: field for field, name in NAMES.items()} | {field: field for field in NAMES}


def load_settings(settings_file: Path | None = None, **given: object) -> Settings:
    """With what flags gave on top; None means not given."""
    return read_settings(settings_file, **given)[0]


def read_settings(settings_file: Path | None = None, **given: object) -> tuple[Settings, dict[str, str]]:
    """The settings, and where each came from; or one SettingsError with all that is wrong."""
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
        problems.append(f"{file}: {error}. Mend it, or --settings or {FILE_VARIABLE}.")
    return {}


def _by_field(values: Mapping[str, Any], origin: str, problems: list[str]) -> dict[str, Any]:
    """Keys may be written as in the environment or in small letters."""
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
    """What cannot be a name may be an address with a password in it, in the wrong place."""
    return given if _is_name(given) else "…"
