"""Changes of one policy in its file: everything else stays, byte for byte."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from tarry.errors import SettingsError
from tarry.topology.load import load, shipped
from tarry.topology.policy_edit import FileEdit, edit_policy, written_policy

RULE = {"type": "ValueError", "reason": "declined *", "class": "final"}

MAIN = """# The main file.
[[policy]]
name = "first" # a comment
match = { queue = "first" }
schedule = ["1s"]
max_retries = 1

[[policy]]
name = "orders"
{values}

# The last one.
[[policy]]
name = "rest"
schedule = ["1m"]
max_retries = 2
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def edited(folder: Path, values: str, now: dict[str, Any]) -> FileEdit:
    (folder / "tarry.toml").write_bytes(MAIN.replace("{values}", values).encode())
    was = next(one for one in load(folder).policies if one.name == "orders")
    if "errors" in now:
        now["errors"] = [*now["errors"], *written_policy(was)["errors"]]
    return edit_policy(folder, "orders", {key: written_policy(was)[key] for key in now}, now)


PLAIN = 'schedule = ["5s", "1m"] # short\nmax_retries = 3'


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (
            PLAIN,
            (
                'schedule = ["5s", "1m"] # short\nmax_retries = 3\nerrors = [\n    { type = "ValueError", '
                'reason = "declined *", class = "final" },\n]'
            ),
        ),
        (
            f'errors = [{{ type = "A", class = "final" }}]\n{PLAIN}',
            (
                'errors = [{ type = "ValueError", reason = "declined *", class = "final" }, '
                f'{{ type = "A", class = "final" }}]\n{PLAIN}'
            ),
        ),
        (
            f'errors = [ # ours\n  # the worst\n  {{ type = "A", class = "final" }}, # a\n]\n{PLAIN}',
            (
                'errors = [ # ours\n  { type = "ValueError", reason = "declined *", class = "final" },\n'
                f'  # the worst\n  {{ type = "A", class = "final" }}, # a\n]\n{PLAIN}'
            ),
        ),
        (
            f'{PLAIN}\n  [[policy.errors]] # a\n  type = "A"\n  class = "final"',
            (
                f'{PLAIN}\n  [[policy.errors]]\n  type = "ValueError"\n  reason = "declined *"\n  class = "final"\n\n'
                '  [[policy.errors]] # a\n  type = "A"\n  class = "final"'
            ),
        ),
        (
            f"errors = []\n{PLAIN}",
            f'errors = [{{ type = "ValueError", reason = "declined *", class = "final" }}]\n{PLAIN}',
        ),
        (
            f'{PLAIN}\n[policy.breaker]\nfailed = "50%"\nof = 20\nwithin = "1m"\nwait = "30s"',
            (
                f'{PLAIN}\nerrors = [\n    {{ type = "ValueError", reason = "declined *", class = "final" }},\n]\n'
                '[policy.breaker]\nfailed = "50%"\nof = 20\nwithin = "1m"\nwait = "30s"'
            ),
        ),
    ],
    ids=["none", "one line", "lines", "tables", "empty", "table within"],
)
def test_edit_policy_puts_a_rule_first(folder: Path, values: str, expected: str) -> None:
    edit = edited(folder, values, {"errors": [RULE]})

    assert edit.after == MAIN.replace("{values}", expected)


@pytest.mark.parametrize(
    ("values", "now", "expected"),
    [
        (PLAIN, {"schedule": ["65s"], "max_retries": 2}, 'schedule = ["65s"] # short\nmax_retries = 2'),
        (
            'backoff = { base = "1s", cap = "1h" } # b\nmax_retries = 3',
            {"backoff": {"base": "1s", "factor": 2.0, "cap": "4s"}},
            'backoff = { base = "1s", cap = "4s" } # b\nmax_retries = 3',
        ),
        (
            'max_retries = 3\n[policy.backoff]\nbase = "1s"\ncap = "1h" # c',
            {"backoff": {"base": "1s", "factor": 2.0, "cap": "4s"}},
            'max_retries = 3\n[policy.backoff]\nbase = "1s"\ncap = "4s" # c',
        ),
        (
            'extends = "gentle"',
            {"max_retries": 2},
            'extends = "gentle"\nmax_retries = 2',
        ),
    ],
    ids=["schedule", "backoff", "table", "inherited"],
)
def test_edit_policy_replaces_values(folder: Path, values: str, now: dict[str, Any], expected: str) -> None:
    assert edited(folder, values, now).after == MAIN.replace("{values}", expected)


def test_edit_policy_adds_one_rule_after_the_other(folder: Path) -> None:
    other = {**RULE, "type": "KeyError"}

    edited(folder, PLAIN, {"errors": [RULE]}).write()
    edit_policy(folder, "orders", {"errors": []}, {"errors": [other]}).write()

    assert written_policy(load(folder).policies[1])["errors"] == [other, RULE]
    with pytest.raises(SettingsError, match="has this change already"):
        edit_policy(folder, "orders", {"errors": []}, {"errors": [RULE]})


def test_edit_policy_keeps_the_line_ends_of_the_file(folder: Path) -> None:
    edit = edited(folder, PLAIN, {"errors": [RULE]})
    (folder / "tarry.toml").write_bytes(edit.before.replace("\n", "\r\n").encode())

    again = edit_policy(folder, "orders", {"errors": []}, {"errors": [RULE]})
    again.write()

    assert (folder / "tarry.toml").read_bytes() == edit.after.replace("\n", "\r\n").encode()


@pytest.mark.parametrize(
    ("values", "now", "why"),
    [
        ('schedule = [\n  "5s", # soon\n  "1m",\n]\nmax_retries = 3', {"schedule": ["65s"]}, "comment within"),
        (
            'extends = "gentle"\nbackoff = { base = "2s" }',
            {"backoff": {"base": "2s", "factor": 2.0, "cap": "4s"}},
            "is inherited",
        ),
        (PLAIN, {"max_retries": -1}, "cannot be made exactly"),
    ],
    ids=["comment", "partly inherited", "not valid"],
)
def test_edit_policy_refuses_what_is_not_exact(folder: Path, values: str, now: dict[str, Any], why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        edited(folder, values, now)


def test_edit_policy_refuses_a_change_that_others_would_inherit(folder: Path) -> None:
    text = MAIN.replace("{values}", PLAIN).replace('name = "rest"', 'name = "rest"\nextends = "orders"')
    (folder / "tarry.toml").write_text(text)

    with pytest.raises(SettingsError, match="something else too"):
        edit_policy(folder, "orders", {"errors": []}, {"errors": [RULE]})


def test_edit_policy_refuses_other_files_than_those_of_the_service(folder: Path) -> None:
    (folder / "tarry.toml").write_text(MAIN.replace("{values}", PLAIN))

    with pytest.raises(SettingsError, match="max_retries of the policy orders is not what"):
        edit_policy(folder, "orders", {"max_retries": 5}, {"max_retries": 4})
    with pytest.raises(SettingsError, match="no policy nobody"):
        edit_policy(folder, "nobody", {}, {})
    with pytest.raises(SettingsError, match="shipped with tarry"):
        edit_policy(shipped(), "default", {}, {})


def test_edit_policy_changes_a_file_of_the_policy_folder(folder: Path) -> None:
    (folder / "tarry.toml").write_text('[[policy]]\nname = "rest"\nschedule = ["1m"]\nmax_retries = 2\n')
    (folder / "policies").mkdir()
    path = folder / "policies" / "orders.toml"
    path.write_text('[[policy]]\nname = "orders"\nmatch = { queue = "orders" }\nschedule = ["5s"]\nmax_retries = 3')
    path.chmod(0o640)

    edit = edit_policy(folder, "orders", {"errors": []}, {"errors": [RULE]})
    edit.write()

    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [path.name for path in path.parent.iterdir()] == ["orders.toml"]
    assert written_policy(load(folder).policies[1])["errors"] == [RULE]
    assert edit.diff().startswith(f"--- {path}\n+++ {path}\n")


def test_write_refuses_a_file_that_has_changed(folder: Path) -> None:
    edit = edited(folder, PLAIN, {"max_retries": 4})
    (folder / "tarry.toml").write_text(edit.before + "# somebody else\n")

    with pytest.raises(SettingsError, match="changed meanwhile"):
        edit.write()

    assert (folder / "tarry.toml").read_text() == edit.before + "# somebody else\n"


def test_write_leaves_the_old_file_if_it_cannot(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit = edited(folder, PLAIN, {"max_retries": 4})

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(SettingsError, match="No space left on device"):
        edit.write()

    assert (folder / "tarry.toml").read_text() == edit.before
    assert [path.name for path in folder.iterdir()] == ["tarry.toml"]
