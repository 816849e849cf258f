"""Creates a topology folder for the user: a copy of the shipped one, with an explanatory comment."""

from __future__ import annotations

from pathlib import Path

from tarry.errors import SettingsError
from tarry.topology.load import MAIN_FILE, shipped

HEADER = """\
# The topology of one installation of tarry, to edit and to keep in version control:
#
#   tarry.toml       what things are called on the broker, the ladder, which queues may be retried (this file)
#   policies/*.toml  how messages are retried; read in the order of the file names, the first matching policy applies
#   schema.json      what an editor needs to complete and check these files
#
# Set TARRY_TOPOLOGY to this folder wherever tarry runs. After a change:
#
#   tarry topology plan    shows what is missing or left over on the broker
#   tarry topology apply   declares what is missing
#
"""


def write_starter(folder: Path) -> list[Path]:
    """Writes the files and returns their paths. Refuses a folder that is not empty; overwrites nothing."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise SettingsError(
                f"{folder} exists and is not an empty folder: nothing was written. Name a new folder, as in "
                "`tarry topology init my-topology`."
            )
        return [_write(folder / path, text) for path, text in _files()]
    except OSError as error:
        raise SettingsError(f"{folder} cannot be written: {error.strerror}: {error.filename}.") from error


def _files() -> list[tuple[Path, str]]:
    source = shipped()
    found = [source / MAIN_FILE, source / "schema.json", *sorted((source / "policies").glob("*.toml"))]
    return [(path.relative_to(source), _with_header(path, path.read_text(encoding="utf-8"))) for path in found]


def _with_header(path: Path, text: str) -> str:
    """Inserts the comment after the first line, which names the schema for editors."""
    if path.name != MAIN_FILE:
        return text
    first, _, rest = text.partition("\n")
    return f"{first}\n{HEADER}{rest}"


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    return path
