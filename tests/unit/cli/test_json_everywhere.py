"""Each command of the command line has --json, or is listed here with the reason why not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from typer.main import get_command

from tarry.cli.main import app

EXCEPTIONS = {
    "demo": "a show for a person: it draws the queues while it runs, and ends with a summary in words",
    "serve": "prints only its log, which is JSON with TARRY_LOG=json",
}


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """All that print something: the commands, and the groups that do something without one."""
    for name, command in group.commands.items():
        here = (*path, name)
        if not hasattr(command, "commands"):
            yield " ".join(here), command
            continue
        if command.invoke_without_command:
            yield " ".join(here), command
        yield from commands(command, here)


COMMANDS = dict(commands(get_command(app)))


def has_json(command: Any) -> bool:
    return any("--json" in option.opts for option in command.params)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_command_has_an_option_for_json(name: str) -> None:
    assert has_json(COMMANDS[name]) is (name not in EXCEPTIONS), EXCEPTIONS.get(name, "add --json (AsJson)")


def test_exceptions_name_commands_and_a_reason() -> None:
    assert set(EXCEPTIONS) <= set(COMMANDS)
    assert all(EXCEPTIONS.values())


def test_commands_are_found_in_groups_too() -> None:
    assert {"top", "review", "review redrive", "audit verify", "intake pause", "stuck"} <= set(COMMANDS)
