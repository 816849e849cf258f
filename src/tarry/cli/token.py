"""`tarry token`: tokens for the HTTP API."""

from __future__ import annotations

from typing import Annotated

import typer

from tarry.cli.options import AsJson
from tarry.cli.output import Commands, line, note, print_json
from tarry.errors import SettingsError
from tarry.settings import load_settings
from tarry.settings.tokens import Role, new_token

app = typer.Typer(cls=Commands, no_args_is_help=True, help="Tokens for the HTTP API.")


@app.command("new")
def new(
    name: Annotated[str, typer.Argument(help="Whose it is: recorded with everything that is done with it.")],
    role: Annotated[Role, typer.Option(help="look: read all but payloads. operate: read payloads, and act.")],
    as_json: AsJson = False,
) -> None:
    """Make a token. It is shown once and kept nowhere: the settings hold only its hash."""
    known = load_settings().tokens
    if name in {token.name for token in known}:
        raise SettingsError(f"API_TOKENS has a token called {name!r} already: take another name, or take that one out.")
    try:
        token, entry = new_token(name, role)
    except ValueError:
        raise SettingsError(
            f"{name!r} is no name for a token: use up to 64 letters, digits, dots, - and _, beginning with a letter or "
            "digit."
        ) from None
    entries = [*map(str, known), str(entry)]
    if as_json:
        print_json({"token": token, "entry": str(entry), "API_TOKENS": ",".join(entries)})
        return
    line(token)
    note("\nGive it to its user over a safe way; nobody can read it again. Send it as: Authorization: Bearer …")
    note(f"For the service{' (with the tokens that it has here)' if len(entries) > 1 else ''}, then start it anew:\n")
    note(f"API_TOKENS={','.join(entries)}")
