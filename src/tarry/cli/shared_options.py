"""Options that several commands have in common, told once: typer reads a command's signature, so it is put together."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, get_type_hints

Options = Mapping[str, tuple[Any, Any]]
"""By parameter: its annotation, and its default."""


def sharing(
    command: Callable[..., Any],
    given: Collection[str],
    options: Options,
    run: Callable[[dict[str, Any], dict[str, Any]], None],
) -> Callable[..., None]:
    """A command that typer can read: its own options and the shared ones.

    `run` gets both apart, the shared ones first, and calls the command with what it makes of them as `given`.
    """
    hints = get_type_hints(command, include_extras=True)
    own = [one for one in inspect.signature(command).parameters.values() if one.name not in given]

    @functools.wraps(command)
    def whole(**said: Any) -> None:
        shared = {name: said.pop(name) for name in options}
        run(shared, said)

    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[one.name]) for one in own]
    parameters += [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in options.items()
    ]
    whole.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # what typer reads
    whole.__annotations__ = {one.name: one.annotation for one in parameters}
    return whole
