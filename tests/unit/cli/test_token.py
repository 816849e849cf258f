from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import Result

from tarry.errors import SettingsError
from tarry.settings import load_settings
from tarry.settings.sources import NAMES
from tarry.settings.tokens import Role, find, new_token, parse_tokens
from tests.support.cli import run_cli


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NAMES.values(), "TARRY_SETTINGS"):
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str, **environment: str) -> Result:
    return run_cli(arguments, environment)


def test_the_token_is_shown_once_and_the_setting_has_only_its_hash() -> None:
    made = json.loads(run("token", "new", "alice", "--role", "operate", "--json").stdout)
    assert re.fullmatch(r"tarry_[A-Za-z0-9_-]{43}", made["token"])
    digest = hashlib.sha256(made["token"].encode()).hexdigest()
    assert made["API_TOKENS"] == made["entry"] == f"alice:operate:{digest}"
    assert json.loads(run("token", "new", "alice", "--role", "operate", "--json").stdout)["token"] != made["token"]


def test_the_line_for_the_settings_has_those_that_are_there_too() -> None:
    first = str(new_token("alice", Role.OPERATE)[1])
    shown = run("token", "new", "ci", "--role", "look", API_TOKENS=first)
    assert re.search(rf"^API_TOKENS={first},ci:look:[0-9a-f]{{64}}$", shown.stderr, re.MULTILINE)
    assert re.fullmatch(r"tarry_\S+", shown.stdout.strip()), "only the token itself goes into a pipe"


def test_a_token_is_limited_to_queues_by_the_end_of_its_entry() -> None:
    words = ("token", "new", "team", "--role", "operate", "--queue", "orders.*", "--queue", "exchange:shop", "--json")
    made = json.loads(run(*words).stdout)
    assert made["entry"].endswith(":orders.*|exchange:shop")
    [token] = parse_tokens(made["API_TOKENS"])
    assert (token.scope and token.scope.globs, str(token)) == (("orders.*", "exchange:shop"), made["entry"])
    assert parse_tokens(str(new_token("all", Role.LOOK)[1]))[0].scope is None
    assert "team:operate:***:orders.*|exchange:shop" in run("config", API_TOKENS=made["entry"]).stdout


@pytest.mark.parametrize("glob", ["", "a b", "a,b", "a|b", "[ab]", "a\n"])
def test_a_glob_that_an_entry_cannot_contain_is_refused(glob: str) -> None:
    refused = run("token", "new", "team", "--role", "look", "--queue", glob)
    assert (refused.exit_code, "write a glob of * and ?" in refused.stderr) == (2, True)


@pytest.mark.parametrize("end", [":", ":a||b", ":|", ":a|", ":[a]"])
def test_an_entry_with_unreadable_queues_is_a_mistake(end: str) -> None:
    with pytest.raises(ValueError, match="has an entry that is not"):
        parse_tokens("team:look:" + "0" * 64 + end)


def test_a_bad_or_taken_name_is_refused() -> None:
    assert "is not a valid token name" in run("token", "new", "a b", "--role", "look").stderr
    taken = str(new_token("alice", Role.LOOK)[1])
    assert (
        "already has a token called 'alice'" in run("token", "new", "alice", "--role", "look", API_TOKENS=taken).stderr
    )


def test_only_the_very_token_is_found() -> None:
    (one, entry), (other, other_entry) = new_token("one", Role.LOOK), new_token("other", Role.OPERATE)
    tokens = (entry, other_entry)
    assert (find(tokens, one), find(tokens, other)) == (entry, other_entry)
    for wrong in ("", one[:-1], one + "x", one.upper(), entry.digest, "ü\udc80"):
        assert find(tokens, wrong) is None


@pytest.mark.parametrize(
    "text",
    ["alice", "alice:boss:" + "0" * 64, "alice:look:secret-word", "a b:look:" + "0" * 64, "alice:look:" + "A" * 64],
)
def test_an_entry_that_is_none_is_a_mistake_that_repeats_nothing(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(api_tokens=text)
    assert str(caught.value) == (
        "API_TOKENS (flag): has an entry that is not name:look:hash or name:operate:hash; make one with "
        "`tarry token new`"
    )


def test_two_tokens_of_one_name_are_a_mistake() -> None:
    entry = "alice:look:" + "0" * 64
    with pytest.raises(ValueError, match="has alice twice"):
        parse_tokens(f"{entry} {entry}")


def test_tokens_come_as_text_or_as_a_list_and_are_never_shown(tmp_path: Path) -> None:
    entries = [str(new_token(name, Role.LOOK)[1]) for name in ("alice", "bob")]
    file = tmp_path / "settings.toml"
    file.write_text(f"api_tokens = {json.dumps(entries)}")
    assert [str(one) for one in load_settings(file).tokens] == entries
    for text in (", ".join(entries), "\n".join(entries)):
        assert [str(one) for one in load_settings(api_tokens=text).tokens] == entries
    shown = run("config", API_TOKENS=",".join(entries)).stdout
    assert "alice:look:***,bob:look:***" in shown
    assert not [entry for entry in entries if entry.rpartition(":")[2] in shown]


def test_commands_that_serve_nothing_load_no_web_framework() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from tarry.cli.main import app;"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0;"
        "assert CliRunner().invoke(app, ['config']).exit_code == 0;"
        "print(sorted({'fastapi', 'starlette', 'uvicorn', 'tarry.web'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
