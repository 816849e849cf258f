"""`python -m tarry` is the `tarry` command."""

from __future__ import annotations

import sys


def run() -> None:
    """The console script. Consumers install the client alone, and may still try the command."""
    try:
        from tarry.cli.start import run as command  # noqa: PLC0415 - it may not be installed
    except ModuleNotFoundError as missing:
        if missing.name is None or missing.name.startswith("tarry"):
            raise
        sys.exit(
            f"tarry: the package {missing.name.partition('.')[0]} is missing: only tarry's client is installed here.\n"
            "For the command and the service: pip install 'tarry[server]'"
        )
    command()


if __name__ == "__main__":
    run()
