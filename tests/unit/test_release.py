"""`make release`, without the installations: what is in the archives, the notes, the workflow."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from tarry import __version__
from tests.unit.test_compose import violations

ROOT = Path(__file__).parents[2]
WORKFLOWS = ROOT / ".github" / "workflows"


def release(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / ".ci" / "release.py", *arguments], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--directory", folder], cwd=ROOT, check=True, capture_output=True
    )
    return folder


def test_release_archives_have_every_file_and_no_other(dist: Path) -> None:
    checked = release("contents", dist)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_release_contents_name_what_is_missing_and_what_is_extra(dist: Path, tmp_path: Path) -> None:
    wheel = f"tarry-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(dist / wheel) as whole, zipfile.ZipFile(tmp_path / wheel, "w") as broken:
        for name in whole.namelist():
            if not name.endswith("/claims.sql"):
                broken.writestr(name, whole.read(name))
        broken.writestr("tarry/.env", "secret")
    (tmp_path / f"tarry-{__version__}.tar.gz").write_bytes((dist / f"tarry-{__version__}.tar.gz").read_bytes())
    checked = release("contents", tmp_path)
    assert checked.returncode == 1
    assert f"{wheel}: tarry/store/sql/claims.sql is missing" in checked.stderr
    assert f"{wheel}: tarry/.env should not be in it" in checked.stderr


def test_release_version_of_the_archives_is_that_of_the_package(dist: Path) -> None:
    assert {path.name for path in dist.iterdir()} == {
        f"tarry-{__version__}.tar.gz",
        f"tarry-{__version__}-py3-none-any.whl",
    }
    assert "\nversion =" not in (ROOT / "pyproject.toml").read_text()


def test_release_refuses_a_tag_of_another_version() -> None:
    refused = release("notes", "--tag", "v99.0")
    assert refused.returncode == 1
    assert f"the tag v99.0 is not v{__version__}" in refused.stderr


CHANGELOG = """# Changelog

## Unreleased

### Added
- a new thing

## 1.2.0 - 2026-01-31

### Fixed
- an old thing
"""


@pytest.mark.parametrize(
    ("version", "tagged", "expected"),
    [
        ("1.2.0", True, "# tarry 1.2.0\n\n### Fixed\n- an old thing\n"),
        ("1.3.0", False, "# tarry 1.3.0\n\n### Added\n- a new thing\n"),
    ],
)
def test_release_notes_are_the_section_of_the_version(version: str, tagged: bool, expected: str) -> None:  # noqa: FBT001
    assert notes(CHANGELOG, version, tagged=tagged) == expected


def test_release_notes_of_a_tag_need_a_section() -> None:
    assert "rename `## Unreleased` to it" in notes(CHANGELOG, "1.3.0", tagged=True)


def notes(changelog: str, version: str, *, tagged: bool) -> str:
    """The notes, or the error; in a process of its own, as .ci/ is no package."""
    code = (
        "import sys; sys.path.insert(0, '.ci'); import release\n"
        f"try: print(release.release_notes({changelog!r}, {version!r}, tagged={tagged}), end='')\n"
        "except release.ReleaseError as error: print(error, end='')"
    )
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_release_workflow_follows_its_schema_and_passes_the_gate_first() -> None:
    """`on` is a boolean in YAML 1.1, which is what this reader knows."""
    read = yaml.safe_load((WORKFLOWS / "release.yml").read_text(encoding="utf-8"))
    read["on"] = read.pop(True)
    assert violations(read, "github-workflows") == []
    assert read["jobs"]["gate"] == {"uses": "./.github/workflows/ci.yml"}
    assert read["jobs"]["release"]["needs"] == "gate"
