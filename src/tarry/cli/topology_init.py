"""`tarry topology init`: a topology folder to edit."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from tarry.cli.options import AsJson
from tarry.cli.output import line, print_json
from tarry.topology.source import Source
from tarry.topology.starter import write_starter


def register(app: typer.Typer) -> None:
    app.command()(init)


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new or empty folder.")] = Path("topology"),
    *,
    as_json: AsJson = False,
) -> None:
    """Write a topology folder to start from: the shipped topology, with comments. Nothing is overwritten."""
    written = write_starter(folder)
    path = Source(folder).path
    if as_json:
        print_json({"folder": path, "files": [str(file.relative_to(folder)) for file in written]})
        return
    line(f"Wrote {len(written)} files to {path}.", "✓", "bold green")
    line("Next:")
    line(f"  1. Edit {folder}/tarry.toml and {folder}/policies/*.toml.")
    line(f"  2. export TARRY_TOPOLOGY={shlex.quote(path)}")
    line("     for the commands here, and for `tarry serve` wherever it runs.")
    line("  3. tarry topology plan     shows what would be declared on the broker.")
    line("  4. tarry topology apply    declares it.")
