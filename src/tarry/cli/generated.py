"""Files that tarry writes: to stdout, to a place, or held against one that must be fresh; and the users in one."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from tarry.cli.output import note
from tarry.errors import SettingsError, TopologyMismatchError
from tarry.topology.definitions import User, deploy_user, router_user
from tarry.topology.model import Topology


def write_or_check(text: str, output: Path | None, check: Path | None, command: str) -> None:
    if check is not None:
        if not check.is_file() or check.read_bytes() != text.encode():
            raise TopologyMismatchError(f"{check} is stale. Write it anew with: {command} {check}")
        note(f"{check} is fresh.")
    elif output is not None:
        _write(output, text)
        note(f"Wrote {output}.")
    else:
        typer.echo(text, nl=False)


def _write(output: Path, text: str) -> None:
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{output} cannot be written: {error.strerror}.") from error


def users_of(topology: Topology, deploy_file: Path | None, router_file: Path | None) -> tuple[User, ...]:
    return (
        deploy_user(topology, _password("deploy", deploy_file, "TARRY_DEPLOY_PASSWORD")),
        router_user(topology, _password("router", router_file, "TARRY_ROUTER_PASSWORD")),
    )


def _password(role: str, file: Path | None, variable: str) -> str:
    """A password is never made up: one that nobody chose is one that nobody changes."""
    try:
        found = file.read_text(encoding="utf-8").strip() if file else os.environ.get(variable, "")
    except OSError as error:
        raise SettingsError(f"The {role} user's password cannot be read: {file}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"The {role} user's password cannot be read: {file} is not UTF-8 text.") from error
    if not found:
        raise SettingsError(
            f"No password for the {role} user: give --{role}-password-file or set {variable}, or leave out --users."
        )
    return found
