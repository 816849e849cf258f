"""The whole of the `tarry` command, for whoever wants to look at all of it: the reference pages, the tests."""

from __future__ import annotations

from tarry.cli.start import CONTENTS, made

app = made(CONTENTS)
