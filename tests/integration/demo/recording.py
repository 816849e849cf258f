"""Writes docs/img/session.svg, the demo as a terminal shows it: `make screenshots` records it anew.

The fonts are the reader's own, so the picture needs no network.
"""

from __future__ import annotations

import os
import subprocess
import sys
from html import escape
from pathlib import Path

from tests.support.cli import TARRY

INTO = Path("docs/img/session.svg")
COLUMNS = 100
WIDTH, HEIGHT = 8.4, 19
"""Pixels of one character."""
MARGIN = 16
PLAIN, DIM, PROMPT, GOOD = "#d8dee9", "#8a94a6", "#88c0d0", "#a3be8c"
SETTINGS = {"NO_COLOR": "1", "COLUMNS": str(COLUMNS), "PYTHONUNBUFFERED": "1"}


def main() -> None:
    command = [*TARRY, "demo"]
    done = subprocess.run(command, env=os.environ | SETTINGS, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode or "lost 0" not in done.stdout:
        sys.exit(f"the demo failed:\n{done.stdout}{done.stderr}")
    INTO.write_text(picture("make demo", done.stdout.strip().splitlines()), encoding="utf-8")
    print(f"wrote {INTO}")  # noqa: T201  a command


def picture(command: str, lines: list[str]) -> str:
    """An SVG of the command and what it printed."""
    shown = [f"$ {command}", *(line[:COLUMNS].rstrip() for line in lines)]
    width, height = COLUMNS * WIDTH + 2 * MARGIN, len(shown) * HEIGHT + 2 * MARGIN
    texts = "\n".join(_text(place, line) for place, line in enumerate(shown) if line.strip())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">\n'
        f"<title>A recorded run of {escape(command)}</title>\n"
        f'<rect width="100%" height="100%" rx="8" fill="#20252e"/>\n'
        f'<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14">\n{texts}\n</g>\n</svg>\n'
    )


def _text(place: int, line: str) -> str:
    plain, indent = line.lstrip(), len(line) - len(line.lstrip())
    x, y = MARGIN + indent * WIDTH, MARGIN + (place + 0.75) * HEIGHT
    where = f'x="{x:.1f}" y="{y:.1f}" textLength="{len(plain) * WIDTH:.1f}" xml:space="preserve"'
    return f'<text {where} fill="{_colour(place, line)}">{escape(plain)}</text>'


def _colour(place: int, line: str) -> str:
    if not place:
        return PROMPT
    return GOOD if "lost 0" in line else PLAIN if line.startswith(" ") else DIM


if __name__ == "__main__":
    main()
