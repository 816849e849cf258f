"""A topology folder of one's own: a copy of the shipped one, with a comment that says what it is."""

from __future__ import annotations

from pathlib import Path

from tarry.errors import SettingsError
from tarry.topology.load import MAIN_FILE, shipped

HEADER = """\
# The topology of one installation of tarry, to edit and to keep in version control:
#
#   tarry.toml       what things are called on the broker, the ladder, which queues may be retried (this file)
#   policies/*.toml  how retries go; read in the order of the file names, and the first policy that matches decides
#   schema.json      what an editor needs to complete and check these files
#
# Set TARRY_TOPOLOGY to this folder wherever tarry runs. After a change:
#
#   tarry topology plan    shows what is missing or left over on the broker
#   tarry topology apply   declares what is missing
#
"""


def write_starter(folder: Path) -> list[Path]:
    """Writes the files and returns their paths; a folder that holds anything is refused, and nothing is overwritten."""
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
    """After the first line, which names the schema to editors."""
    if path.name != MAIN_FILE:
        return text
    first, _, rest = text.partition("\n")
    return f"{first}\n{HEADER}{rest}"


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    return path
