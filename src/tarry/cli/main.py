"""The complete `tarry` command, for the reference pages and the tests."""

from __future__ import annotations

from tarry.cli.start import CONTENTS, made

app = made(CONTENTS)
