"""`python -m tarry` is the `tarry` command."""

from tarry.cli.main import run

if __name__ == "__main__":
    run()
