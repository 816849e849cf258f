"""Builds a release into dist/ and tries it as a stranger would: `make release`.

Usage: release.py [all] [--tag v1.2.3]   everything below, in order; a tag must match the version and the changelog
       release.py contents [FOLDER]      what is in the sdist and the wheel, against the files of the repository
       release.py notes [--tag v1.2.3]   the release notes, from CHANGELOG.md

The version is stated in src/tarry/__init__.py and nowhere else. Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from email.parser import Parser
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
BIN = Path(sys.executable).parent

IMAGE = ("--extra", "server", "--extra", "otel")
"""What the image has, as in the Dockerfile."""

IN_EVERY_WHEEL = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}

CLIENT_ONLY = "import tarry.client, sys; assert 'pydantic' not in sys.modules"
TRIES: Mapping[str, Sequence[Sequence[str]]] = {
    "": [["python", "-c", CLIENT_ONLY]],
    "pika": [["python", "-c", CLIENT_ONLY + "; import tarry.client.pika"]],
    "aio-pika": [["python", "-c", CLIENT_ONLY + "; import tarry.client.aio_pika"]],
    "server": [["tarry", "--version"], ["tarry", "topology", "init"], ["tarry", "topology", "show"]],
    "otel": [["python", "-c", "import tarry, opentelemetry.exporter.otlp.proto.http.trace_exporter"]],
    "embedded": [["tarry", "demo"]],
}
"""What is tried in an empty folder after `pip install 'tarry[extra]'`."""

NOTHING_LOST = re.compile(r"\blost +0\b")


class ReleaseError(Exception):
    """What is wrong, and what to do."""


def say(text: str) -> None:
    print(f"==> {text}", flush=True)  # noqa: T201  it is what this program is for


def version() -> str:
    text = (ROOT / "src" / "tarry" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "([^"]+)"$', text, re.MULTILINE)
    if found is None:
        raise ReleaseError('src/tarry/__init__.py has no line __version__ = "…"')
    return found[1]


def release_notes(changelog: str, wanted: str, *, tagged: bool) -> str:
    """The section of this version; for a rehearsal without a tag, what is unreleased."""
    parts = re.split(r"^## (.+)$", changelog, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    title = next(
        (title for title in sections if re.fullmatch(rf"{re.escape(wanted)} - \d{{4}}-\d\d-\d\d", title)), None
    )
    if title is None and tagged:
        raise ReleaseError(
            f"CHANGELOG.md has no section `## {wanted} - YYYY-MM-DD`: rename `## Unreleased` to it, and start a new one"
        )
    text = sections.get(title or "Unreleased", "").strip()
    if not text:
        raise ReleaseError(f"CHANGELOG.md has nothing under {title or 'Unreleased'}: a release needs notes")
    return f"# tarry {wanted}\n\n{text}\n"


def repository_files() -> set[str]:
    """The files of the repository that exist: what git knows or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}


def in_the_wheel(files: set[str], named: str) -> set[str]:
    """What a wheel of that distribution name and version must have."""
    package = {name.removeprefix("src/") for name in files if name.startswith("src/")}
    placed = {
        place + name.removeprefix(source)
        for source, place in data_of_the_wheel().items()
        for name in files
        if name == source or name.startswith(f"{source}/")
    }
    return package | placed | {f"{named}.dist-info/{name}" for name in IN_EVERY_WHEEL}


def data_of_the_wheel() -> dict[str, str]:
    """Files and folders at the top of the repository that the package has a copy of, and where."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included: dict[str, str] = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    return included


def archives(folder: Path) -> tuple[Path, Path]:
    """The sdist and the wheel of the current version; nothing else may be there."""
    named = f"tarry-{version()}"
    sdist, wheel = folder / f"{named}.tar.gz", folder / f"{named}-py3-none-any.whl"
    for path in (sdist, wheel):
        if not path.is_file():
            raise ReleaseError(f"{path} is missing: build it with `python -m build --no-isolation`")
    return sdist, wheel


def differences(folder: Path) -> Iterator[str]:
    """One line for each file that is missing or should not be there."""
    sdist, wheel = archives(folder)
    files, named = repository_files(), f"tarry-{version()}"
    with tarfile.open(sdist) as archive:
        packed = {str(PurePosixPath(*PurePosixPath(name).parts[1:])) for name in archive.getnames()}
    with zipfile.ZipFile(wheel) as archive:
        wheeled = set(archive.namelist())
    for path, found, wanted in (
        (sdist, packed, files | {"PKG-INFO"}),
        (wheel, wheeled, in_the_wheel(files, named)),
    ):
        yield from (f"{path.name}: {name} is missing" for name in sorted(wanted - found))
        yield from (f"{path.name}: {name} should not be in it" for name in sorted(found - wanted))


def check_contents(folder: Path) -> None:
    wrong = list(differences(folder))
    if wrong:
        raise ReleaseError("\n".join(wrong))


def run(*command: str | Path, cwd: Path = ROOT, env: Mapping[str, str] | None = None) -> str:
    """Runs it, shows its output if it fails, and returns its standard output."""
    done = subprocess.run(
        command,
        check=False,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        called = " ".join(map(str, command))
        raise ReleaseError(f"{done.stdout}\n`{called}` ended with exit code {done.returncode}")
    return done.stdout


def clean_environment() -> dict[str, str]:
    """Without what would let an installation find this checkout, another broker or other settings."""
    own = re.compile(r"(PYTHON(?!WARNINGS)|TARRY_|RABBITMQ_|RETRY_|HTTP_|API_|VIRTUAL_ENV|DATABASE_URL|BROKER|PG)")
    return {name: value for name, value in os.environ.items() if not own.match(name)}


def extras(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    return ["", *metadata.get_all("Provides-Extra", [])]


def try_extra(wheel: Path, extra: str) -> None:
    """Installs the wheel with this extra in a new environment, and uses it in an empty folder."""
    with tempfile.TemporaryDirectory(prefix="tarry-release-") as scratch:
        environment, empty = Path(scratch, "venv"), Path(scratch, "empty")
        empty.mkdir()
        venv.create(environment, with_pip=True)
        programs, clean = environment / "bin", clean_environment()
        pip = (programs / "python", "-m", "pip", "--disable-pip-version-check", "--quiet")
        run(*pip, "install", f"tarry[{extra}] @ {wheel.as_uri()}" if extra else str(wheel), cwd=empty, env=clean)
        run(*pip, "check", cwd=empty, env=clean)
        for program, *arguments in TRIES.get(extra, [["python", "-c", "import tarry"]]):
            output = run(programs / program, *arguments, cwd=empty, env=clean)
            if "demo" in arguments:
                print(output, flush=True)  # noqa: T201  the proof
                if not NOTHING_LOST.search(output):
                    raise ReleaseError("`tarry demo` from the wheel did not print `lost 0`")


def bill_of_materials(wheel: Path, path: Path) -> None:
    """CycloneDX, of the service with the versions of requirements.lock, which are those of the image and the tests."""
    with tempfile.TemporaryDirectory(prefix="tarry-sbom-") as scratch:
        python = Path(scratch, "venv", "bin", "python")
        locked = ("--require-hashes", "--constraint", "requirements.lock", "--requirement", "pyproject.toml")
        run(BIN / "uv", "venv", "--quiet", "--python", sys.executable, python.parents[1])
        run(BIN / "uv", "pip", "install", "--quiet", "--python", python, *locked, *IMAGE)
        run(BIN / "uv", "pip", "install", "--quiet", "--python", python, "--no-deps", wheel)
        tool = (BIN / "cyclonedx-py", "environment", "--output-reproducible", "--output-format", "JSON")
        listed = json.loads(run(*tool, python))
    own = next(part for part in listed["components"] if part["name"] == "tarry")
    listed["metadata"]["component"] = own | {"type": "application"}
    listed["components"].remove(own)
    for part in (own, listed["metadata"]["component"], *listed["components"]):
        # Where the builder found a file says nothing about the component.
        kept = [link for link in part.get("externalReferences", []) if not link["url"].startswith("file:")]
        part["externalReferences"] = kept
    path.write_text(json.dumps(listed, indent=2) + "\n", encoding="utf-8")


def release(tag: str | None) -> None:
    number = version()
    notes = release_notes(changelog(), number, tagged=tag is not None)
    if DIST.exists():
        for old in DIST.iterdir():
            old.unlink()
    say(f"building tarry {number}")
    run(BIN / "python", "-m", "build", "--no-isolation", "--outdir", DIST)
    sdist, wheel = archives(DIST)
    say("checking the metadata and the contents")
    run(BIN / "twine", "check", "--strict", sdist, wheel)
    check_contents(DIST)
    for extra in extras(wheel):
        say(f"trying `pip install '{f'tarry[{extra}]' if extra else 'tarry'}'` in a new environment")
        try_extra(wheel, extra)
    say("writing the bill of materials, the release notes and the checksums")
    bill_of_materials(wheel, DIST / f"tarry-{number}.cdx.json")
    (DIST / "RELEASE_NOTES.md").write_text(notes, encoding="utf-8")
    sums = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(DIST.iterdir())]
    (DIST / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")
    for path in sorted(DIST.iterdir()):
        say(f"{path.relative_to(ROOT)}  {path.stat().st_size:,} bytes")
    if tag is None:
        say("a rehearsal: without --tag the notes may come from Unreleased")


def changelog() -> str:
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def check_tag(tag: str | None) -> None:
    if tag is not None and tag != f"v{version()}":
        raise ReleaseError(f"the tag {tag} is not v{version()}, the version in src/tarry/__init__.py")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="make release", description="Builds a release into dist/ and tries it.")
    parser.add_argument("step", nargs="?", default="all", choices=["all", "contents", "notes"])
    parser.add_argument("folder", nargs="?", type=Path, default=DIST, help="where the archives are (contents)")
    parser.add_argument("--tag", help="the tag of the release, v and the version")
    asked = parser.parse_args(arguments)
    try:
        check_tag(asked.tag)
        if asked.step == "contents":
            check_contents(asked.folder)
        elif asked.step == "notes":
            print(release_notes(changelog(), version(), tagged=asked.tag is not None), end="")  # noqa: T201
        else:
            release(asked.tag)
    except ReleaseError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
