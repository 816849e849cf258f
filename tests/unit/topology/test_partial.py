from __future__ import annotations

from pathlib import Path

import pytest

from tarry.errors import TopologyError
from tarry.settings import load_settings
from tarry.topology.model import NamesSection, Topology
from tarry.topology.partial import NamesOnly, load_names, whole

SHOP = NamesSection(prefix="shop.")
DEFAULT = NamesSection()
NOT_TOML = '[[policy]]\nname = "default\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[names]\nprefix = "shop."\n', SHOP),
        ('[names]\nprefix = "shop."\n[ladder]\nlevles = 3\n', SHOP),
        ('[names]\nprefix = "shop."\n[laddr]\nlevels = 3\n', SHOP),
        ("[ladder]\nlevles = 3\n", DEFAULT),
        ("", DEFAULT),
        (f'[names]  # prefix of the names\nprefix = "shop."\n{NOT_TOML}', SHOP),
        (f'{NOT_TOML}[names]\nprefix = "shop."\n', SHOP),
        (f"# no names here, nor a prefix\n{NOT_TOML}", DEFAULT),
    ],
)
def test_load_names_reads_them_where_the_rest_is_wrong(text: str, expected: NamesSection, tmp_path: Path) -> None:
    (tmp_path / "tarry.toml").write_text(text)
    assert load_names(tmp_path) == expected


@pytest.mark.parametrize(
    "text",
    [
        '[nmaes]\nprefix = "shop."\n',
        '[names]\nprefx = "shop."\n',
        '[names]\nprefix = "a b"\n',
        "names = 3\n",
        "[[names]]\n",
        f'[names]\nprefix = "shop.\n{NOT_TOML}',
        f'[names\nprefix = "shop."\n{NOT_TOML}',
        f'names.prefix = "shop."\n{NOT_TOML}',
        f'names = {{ prefix = "shop." }}\n{NOT_TOML}',
        f'["names"]\nprefix = "shop."\n{NOT_TOML}',
        f'[names]\nprefix = "shop."\n[names]\nprefix = "other."\n{NOT_TOML}',
        f'[nmaes]\nprefix = "shop."\n{NOT_TOML}',
        f'prefix = "shop."\n{NOT_TOML}',
    ],
)
def test_load_names_does_not_guess(text: str, tmp_path: Path) -> None:
    (tmp_path / "tarry.toml").write_text(text)
    assert load_names(tmp_path) is None


def test_load_names_of_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "tarry.toml").write_bytes(b"\xff")
    assert load_names(tmp_path) is None
    with pytest.raises(TopologyError, match="no such file"):
        load_names(tmp_path / "elsewhere")


def test_read_names_applies_what_the_environment_overrides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANUAL_REVIEW_QUEUE", "people")
    (tmp_path / "tarry.toml").write_text(f'[names]\nprefix = "shop."\n{NOT_TOML}')
    found = load_settings(topology=tmp_path).read_names()
    assert isinstance(found, NamesOnly)
    assert found.certain
    assert (found.broker_names.prefix, found.broker_names.scheduled) == ("shop.", "shop.scheduled")
    assert found.broker_names.review_queue == "people"
    with pytest.raises(TopologyError, match="not TOML"):
        whole(found)


def test_read_names_of_files_without_mistakes_is_the_topology() -> None:
    found = load_settings().read_names()
    assert isinstance(found, Topology)
    assert whole(found) is found
