"""A typing error in the topology files, and the commands of an operator who has to act all the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import Result

from tests.integration.operations.review.reviewing import row_of, send_to_review
from tests.support.api import ApiInstallation, api_installation
from tests.support.cli import run_cli
from tests.support.installation import POLICIES
from tests.support.services import Services
from tests.support.spaces import SharedBroker
from tests.support.waiting import wait_for

TYPO = '[[policy]]\nname = "late"\nschedul = ["5m"]\nmax_retries = 3\n'
Tarry = Callable[..., Result]


@pytest.fixture(scope="module")
def api(
    broker: SharedBroker, services: Services, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApiInstallation]:
    with api_installation(broker, services, tmp_path_factory.mktemp("typo"), token=None, API_RATE="0") as made:
        send_to_review(made.installation, made.installation.declare("orders"), ["in-review", "to-discard"])
        yield made


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The files of that installation, with a typing error in one of them."""
    (tmp_path / "policies").mkdir()
    (tmp_path / "tarry.toml").write_text(POLICIES)
    (tmp_path / "policies" / "10-late.toml").write_text(TYPO)
    return tmp_path


@pytest.fixture
def tarry(api: ApiInstallation, files: Path) -> Tarry:
    def run(*words: str) -> Result:
        given = api.installation.environment | {"TARRY_TOPOLOGY": str(files), "TARRY_API": "", "COLUMNS": "200"}
        return run_cli(words, given)

    return run


@pytest.mark.parametrize(
    "words",
    [
        "status",
        "pauses",
        "actions",
        "intake pause",
        "intake resume",
        "review",
        "review summary",
        "review list",
        "review groups",
        "review show in-review",
        "review check",
        "review jobs",
        "review discard to-discard --reason typo",
        "audit verify",
        "audit recover",
        "audit write-off --reason typo",
    ],
)
def test_command_that_needs_no_policy_warns_and_goes_on(words: str, tarry: Tarry, files: Path) -> None:
    done = tarry(*words.split())
    assert done.exit_code == 0, done.output
    [warning] = [line for line in done.stderr.splitlines() if line.startswith("warning:")]
    assert f"{files / 'policies' / '10-late.toml'}:3: policy late, schedul: no such key" in warning
    assert "error:" not in done.stderr


def test_pause_and_resume_need_no_policy(api: ApiInstallation, tarry: Tarry) -> None:
    api.schedule("slow.paused", "m-paused")
    for verb in ("pause", "resume"):
        done = tarry(verb, "slow.paused")
        assert done.exit_code == 0, done.output
        assert done.stderr.count("warning:") == 1
        if verb == "pause":
            assert is_held(api, "slow.paused")
    wait_for(lambda: not is_held(api, "slow.paused"), what="the resume to be done")


def is_held(api: ApiInstallation, queue: str) -> bool:
    bindings = api.installation.api("exchanges/{vhost}/retry.gate.held/bindings/source")
    return f"~to:{queue}" in [one["routing_key"] for one in bindings]


def test_cancel_and_retry_now_need_no_policy(api: ApiInstallation, tarry: Tarry) -> None:
    for verb, message in (("cancel", "m-cancel"), ("retry-now", "m-now")):
        api.schedule("slow.typo", message)
        done = tarry(verb, message)
        assert done.exit_code == 0, done.output
        assert done.stderr.count("warning:") == 1


@pytest.mark.parametrize(
    "words",
    ["review redrive in-review", "topology plan", "topology apply", "attach orders", "explain --queue orders", "serve"],
)
def test_command_that_needs_the_policies_refuses(words: str, api: ApiInstallation, tarry: Tarry, files: Path) -> None:
    done = tarry(*words.split())
    assert done.exit_code == 7, done.output
    assert f"error: {files / 'policies' / '10-late.toml'}:3: policy late, schedul: no such key" in done.stderr
    assert row_of(api.installation, "in-review", "state") == ("in_review",)


def test_status_as_json_warns_on_stderr_only(tarry: Tarry) -> None:
    done = tarry("status", "--json")
    assert done.exit_code == 0
    assert "retry.scheduled" in json.loads(done.stdout)["queues"]
    assert done.stderr.startswith("warning: ")


def test_several_mistakes_are_one_line_of_warning(tarry: Tarry, files: Path) -> None:
    (files / "policies" / "20-more.toml").write_text(TYPO.replace("late", "later") * 2)
    done = tarry("pauses")
    assert done.exit_code == 0
    [warning] = done.stderr.splitlines()
    assert "more; `tarry topology plan` lists them" in warning


@pytest.mark.parametrize(
    ("main", "line"),
    [
        ('[names]\nprefix = "shop."\n\n[ladder]\nlevles = 4\n', ":5"),
        ('[names]\nprefix = "shop."  # ours\n\n[[policy]]\nname = "default\n', ""),
    ],
    ids=["a wrong key in another table", "no TOML after the names"],
)
def test_status_reads_the_names_of_a_wrong_main_file(main: str, line: str, tarry: Tarry, files: Path) -> None:
    (files / "tarry.toml").write_text(main)
    done = tarry("status", "--json")
    assert done.exit_code == 0, done.output
    assert "shop.audit" in json.loads(done.stdout)["queues"]
    assert f"warning: {files / 'tarry.toml'}{line}: " in done.stderr
    assert "default names" not in done.stderr


@pytest.mark.parametrize(
    ("main", "line"),
    [
        ('[names]\nprefix = "shop.\n', ""),
        ('[names]\nprefx = "shop."\n', ":2"),
        ('[nmaes]\nprefix = "shop."\n', ":1"),
        ('[names\nprefix = "shop."\n', ""),
    ],
    ids=["no TOML", "wrong key", "wrong table", "no header"],
)
def test_unreadable_names_are_the_defaults_for_looking_only(
    main: str, line: str, api: ApiInstallation, tarry: Tarry, files: Path
) -> None:
    (files / "tarry.toml").write_text(main)
    for words in ("status", "pauses", "actions", "review list"):
        looked = tarry(*words.split())
        assert looked.exit_code == 0, looked.output
        [warning] = [line for line in looked.stderr.splitlines() if line.startswith("warning:")]
        assert f"warning: {files / 'tarry.toml'}{line}: " in warning
        assert "the default names are used: prefix retry., requests retry.scheduled, review" in warning
    before = api.rows("select count(*) from action")
    for words in ("pause orders", "cancel in-review", "review discard in-review --reason typo", "audit verify"):
        refused = tarry(*words.split())
        assert refused.exit_code == 7, refused.output
        assert "names of queues and exchanges cannot be read" in refused.stderr
    assert api.rows("select count(*) from action") == before


def test_topology_folder_that_is_not_there_is_still_refused(tarry: Tarry, files: Path) -> None:
    (files / "tarry.toml").unlink()
    done = tarry("status")
    assert (done.exit_code, "no such file" in done.stderr) == (7, True)
