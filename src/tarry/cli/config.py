"""`tarry config`: the settings in effect and the source of each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tarry.cli.options import AsJson
from tarry.cli.output import print_json, print_table, table
from tarry.settings.masking import shown
from tarry.settings.model import Settings
from tarry.settings.reference import settings_markdown
from tarry.settings.sources import FILE_VARIABLE, NAMES, given_from, read_settings
from tarry.topology.model import Source

SettingsFile = Annotated[
    Path | None,
    typer.Option("--settings", metavar="FILE", help=f"A TOML file with settings. [env var: {FILE_VARIABLE}]"),
]
Given = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="One setting; overrides environment and file. Repeatable."),
]


def register(app: typer.Typer) -> None:
    app.command("config")(config)


def config(
    settings_file: SettingsFile = None,
    given: Given = None,
    as_json: AsJson = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print docs/settings.md instead: every setting with its default.")
    ] = False,
) -> None:
    """Show the settings in effect and the source of each.

    Sources are flags, environment, file and defaults. Passwords are hidden.
    """
    if markdown:
        typer.echo(settings_markdown(), nl=False)
        return
    settings, origins = read_settings(settings_file, **given_from(given or []))
    if as_json:
        print_json({name: _facts(settings, field, origins) for field, name in NAMES.items()})
        return
    made = table("settings", "setting", "value", "from")
    for field, name in NAMES.items():
        value = _value(settings, field)
        made.add_row(name, "(not set)" if value is None else str(value), origins[field])
    print_table(made)


def _facts(settings: Settings, field: str, origins: dict[str, str]) -> dict[str, str | int | None]:
    return {"value": _value(settings, field), "from": origins[field]}


def _value(settings: Settings, field: str) -> str | int | None:
    """The topology folder depends on where the command is run, so it is shown even if it is not set."""
    return Source(settings.topology_folder).path if field == "topology" else shown(getattr(settings, field))
