"""`tarry token`: tokens for the HTTP API."""

from __future__ import annotations

from typing import Annotated

import typer

from tarry.cli.options import AsJson
from tarry.cli.output import Commands, line, note, print_json
from tarry.errors import SettingsError
from tarry.settings import load_settings
from tarry.settings.tokens import Role, is_glob, new_token

app = typer.Typer(cls=Commands, no_args_is_help=True, help="Create tokens for the HTTP API.")


@app.command("new")
def new(
    name: Annotated[str, typer.Argument(help="Its user; recorded with every action.")],
    role: Annotated[Role, typer.Option(help="look: read all but payloads. operate: also read payloads, and act.")],
    queue: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB", help="Limit it to queues such as 'orders.*'; may be repeated. Others are not found."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a token.

    It is shown only once; the settings contain only its hash.
    """
    for glob in queue or ():
        if not is_glob(glob):
            raise SettingsError(
                f"--queue {glob!r}: write a glob of * and ? without commas, spaces, | or [; ? stands for any character."
            )
    known = load_settings().tokens
    if name in {token.name for token in known}:
        raise SettingsError(f"API_TOKENS already has a token called {name!r}: choose another name, or remove that one.")
    try:
        token, entry = new_token(name, role, queue or ())
    except ValueError:
        raise SettingsError(
            f"{name!r} is not a valid token name: use up to 64 letters, digits, dots, - and _, beginning with a letter "
            "or digit."
        ) from None
    entries = [*map(str, known), str(entry)]
    if as_json:
        print_json({"token": token, "entry": str(entry), "API_TOKENS": ",".join(entries)})
        return
    line(token)
    note("\nSend it to its user securely; it is not shown again. Clients send it as: Authorization: Bearer …")
    note(f"Set this for the service{' (includes the existing tokens)' if len(entries) > 1 else ''}, then restart it:\n")
    note(f"API_TOKENS={','.join(entries)}")
