"""The commands that need no broker, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tarry.topology.load import load, shipped
from tarry.topology.record import digest
from tests.support.cli import run_cli

NOWHERE = ("--url", "amqp://guest:guest@127.0.0.1:1/", "--management-url", "http://127.0.0.1:1")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ("TARRY_TOPOLOGY", "TARRY_SETTINGS", "TARRY_DEPLOY_PASSWORD", "TARRY_ROUTER_PASSWORD")
    for name in (*own, "RABBITMQ_URL", "DATABASE_URL", "RETRY_QUEUE", "MANUAL_REVIEW_QUEUE"):
        monkeypatch.delenv(name, raising=False)


def test_export_writes_and_checks_a_definitions_file(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"

    assert run_cli(["topology", "export", "-o", str(file)]).exit_code == 0
    assert run_cli(["topology", "export", "--check", str(file)]).exit_code == 0
    file.write_text("{}", encoding="utf-8")
    stale = run_cli(["topology", "export", "--check", str(file)])
    assert stale.exit_code == 1
    assert "is out of date. Regenerate it with: tarry topology export -o" in stale.output


def test_export_never_makes_up_a_password(tmp_path: Path) -> None:
    refused = run_cli(["topology", "export", "--users"])

    assert refused.exit_code == 2
    assert "No password for the deploy user" in refused.output
    missing = run_cli(["topology", "export", "--users", "--deploy-password-file", str(tmp_path / "none")])
    assert "cannot be read" in missing.output


def test_export_with_users_takes_passwords_from_a_file_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deploy").write_text("one\n", encoding="utf-8")
    monkeypatch.setenv("TARRY_ROUTER_PASSWORD", "two")

    found = run_cli(["topology", "export", "--users", "--deploy-password-file", str(tmp_path / "deploy")])

    assert [user["name"] for user in json.loads(found.stdout)["users"]] == ["tarry-deploy", "tarry-router"]


def test_schema_describes_every_field() -> None:
    schema = json.loads(run_cli(["topology", "schema"]).stdout)
    models = [schema, *schema["$defs"].values()]

    fields = [field for model in models for field in model.get("properties", {}).values()]
    assert len(fields) > 30
    assert all("description" in field for field in fields)


def test_show_draws_pictures_without_a_broker() -> None:
    assert run_cli(["topology", "show", "-f", "mermaid"]).stdout.startswith("flowchart")
    assert run_cli(["topology", "show", "-f", "svg"]).stdout.startswith("<svg")


def test_show_says_why_there_are_no_depths() -> None:
    shown = run_cli(["topology", "show", *NOWHERE])

    assert shown.exit_code == 0
    assert "retry.gate.cancelled" in shown.stdout
    assert "Depths are not shown. No answer from the management API" in shown.stderr


def test_show_in_json_lists_every_queue() -> None:
    shown = json.loads(run_cli(["topology", "show", "--json", *NOWHERE]).stdout)
    names = [queue["name"] for step in shown["steps"] for queue in step["queues"]]

    assert {"retry.delay.24h", "retry.ladder.0.125ms", "manual-review.pending"} <= set(names)


def test_a_broker_that_is_not_there_is_one_line_and_no_traceback() -> None:
    for command in ("plan", "apply", "verify", "prune"):
        failed = run_cli(["topology", command, *NOWHERE])
        assert failed.exit_code == 1
        assert failed.stderr.startswith("error: No answer from the management API")
        assert len(failed.stderr.splitlines()) == 1


def test_mistakes_in_the_files_are_one_line_each(tmp_path: Path) -> None:
    (tmp_path / "tarry.toml").write_text('destinatons = []\n[[policy]]\nname = "a"\nschedule = ["2sec"]\n', "utf-8")

    failed = run_cli(["topology", "plan", "-t", str(tmp_path)])

    assert failed.exit_code == 7
    assert [line.partition(str(tmp_path))[0] for line in failed.stderr.splitlines()] == ["error: "] * 3


@pytest.mark.parametrize("command", ["apply", "verify", "show", "export", "prune"])
def test_wrong_files_have_the_same_exit_code_in_every_command(tmp_path: Path, command: str) -> None:
    assert run_cli(["topology", command, "-t", str(tmp_path)]).exit_code == 7


def test_plan_never_says_changes_for_a_wrong_flag_or_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_cli(["topology", "plan", "--bogus"]).exit_code == 7
    assert run_cli(["topology", "apply", "--bogus"]).exit_code == 2
    monkeypatch.setenv("RETRY_QUEUE", "retry.audit")
    assert run_cli(["topology", "plan"]).exit_code == 7
    assert run_cli(["topology", "apply"]).exit_code == 2


def test_a_topology_in_the_present_folder_comes_before_the_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "topology").mkdir()
    main = '[names]\nprefix = "mine."\n[[policy]]\nname = "a"\nschedule = ["2s"]\nmax_retries = 1\n'
    (tmp_path / "topology" / "tarry.toml").write_text(main, "utf-8")
    monkeypatch.chdir(tmp_path)

    assert '"mine.delay.2s"' in run_cli(["topology", "export"]).stdout
    assert '"mine.' not in run_cli(["topology", "export", "-t", str(shipped())]).stdout


def test_show_and_export_name_the_folder_they_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_cli(["topology", "init", str(tmp_path / "topology")])
    monkeypatch.chdir(tmp_path)

    shown, exported = run_cli(["topology", "show", *NOWHERE]), run_cli(["topology", "export"])

    assert shown.stdout.startswith(f"Topology: {tmp_path / 'topology'} (digest ")
    assert exported.stderr.startswith(f"Topology: {tmp_path / 'topology'} (digest ")
    assert "(shipped with tarry, digest " in run_cli(["topology", "show", "-t", str(shipped()), *NOWHERE]).stdout


def test_init_writes_the_shipped_topology_with_comments(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "topology"

    written = run_cli(["topology", "init", str(folder)])

    assert written.exit_code == 0
    assert f"Wrote 7 files to {folder}." in written.stdout
    assert f"export TARRY_TOPOLOGY={folder}" in written.stdout
    assert digest(load(folder)) == digest(load(shipped()))
    assert "Set TARRY_TOPOLOGY to this folder" in (folder / "tarry.toml").read_text("utf-8")
    assert (folder / "schema.json").read_text("utf-8") == (shipped() / "schema.json").read_text("utf-8")


def test_init_takes_an_empty_folder_and_topology_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "topology").mkdir()
    monkeypatch.chdir(tmp_path)

    written = json.loads(run_cli(["topology", "init", "--json"]).stdout)

    assert written["folder"] == str(tmp_path / "topology")
    assert written["files"][:2] == ["tarry.toml", "schema.json"]


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine", "utf-8")

    for place in (tmp_path, tmp_path / "mine.txt", tmp_path / "mine.txt" / "below"):
        refused = run_cli(["topology", "init", str(place)])
        assert refused.exit_code == 2
        assert refused.stderr.startswith(f"error: {place} ")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_queue_that_the_environment_renames_is_the_one_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETRY_QUEUE", "my.requests")

    found = json.loads(run_cli(["topology", "export"]).stdout)

    assert "my.requests" in {queue["name"] for queue in found["queues"]}
    assert "retry.scheduled" not in {queue["name"] for queue in found["queues"]}
