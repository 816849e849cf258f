"""The commands that need no broker, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tarry.cli.topology import app
from tarry.topology.load import shipped

NOWHERE = ("--url", "amqp://guest:guest@127.0.0.1:1/", "--management-url", "http://127.0.0.1:1")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ("TARRY_TOPOLOGY", "TARRY_SETTINGS", "TARRY_DEPLOY_PASSWORD", "TARRY_ROUTER_PASSWORD")
    for name in (*own, "RABBITMQ_URL", "DATABASE_URL", "RETRY_QUEUE", "MANUAL_REVIEW_QUEUE"):
        monkeypatch.delenv(name, raising=False)


def test_export_writes_and_checks_a_definitions_file(tmp_path: Path) -> None:
    file = tmp_path / "definitions.json"

    assert CliRunner().invoke(app, ["export", "-o", str(file)]).exit_code == 0
    assert CliRunner().invoke(app, ["export", "--check", str(file)]).exit_code == 0
    file.write_text("{}", encoding="utf-8")
    stale = CliRunner().invoke(app, ["export", "--check", str(file)])
    assert stale.exit_code == 1
    assert "is stale. Write it anew with: tarry topology export -o" in stale.output


def test_export_never_makes_up_a_password(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["export", "--users"])

    assert refused.exit_code == 2
    assert "No password for the deploy user" in refused.output
    missing = CliRunner().invoke(app, ["export", "--users", "--deploy-password-file", str(tmp_path / "none")])
    assert "cannot be read" in missing.output


def test_export_with_users_takes_passwords_from_a_file_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deploy").write_text("one\n", encoding="utf-8")
    monkeypatch.setenv("TARRY_ROUTER_PASSWORD", "two")

    found = CliRunner().invoke(app, ["export", "--users", "--deploy-password-file", str(tmp_path / "deploy")])

    assert [user["name"] for user in json.loads(found.stdout)["users"]] == ["tarry-deploy", "tarry-router"]


def test_schema_describes_every_field() -> None:
    schema = json.loads(CliRunner().invoke(app, ["schema"]).stdout)
    models = [schema, *schema["$defs"].values()]

    fields = [field for model in models for field in model.get("properties", {}).values()]
    assert len(fields) > 30
    assert all("description" in field for field in fields)


def test_show_draws_pictures_without_a_broker() -> None:
    assert CliRunner().invoke(app, ["show", "-f", "mermaid"]).stdout.startswith("flowchart")
    assert CliRunner().invoke(app, ["show", "-f", "svg"]).stdout.startswith("<svg")


def test_show_says_why_there_are_no_depths() -> None:
    shown = CliRunner().invoke(app, ["show", *NOWHERE])

    assert shown.exit_code == 0
    assert "retry.gate.cancelled" in shown.stdout
    assert "Depths are not shown. No answer from the management API" in shown.stderr


def test_show_in_json_lists_every_queue() -> None:
    shown = json.loads(CliRunner().invoke(app, ["show", "--json", *NOWHERE]).stdout)
    names = [queue["name"] for step in shown["steps"] for queue in step["queues"]]

    assert {"retry.delay.24h", "retry.ladder.0.125ms", "manual-review.pending"} <= set(names)


def test_a_broker_that_is_not_there_is_one_line_and_no_traceback() -> None:
    for command in ("plan", "apply", "verify", "prune"):
        failed = CliRunner().invoke(app, [command, *NOWHERE])
        assert failed.exit_code == 1
        assert failed.stderr.startswith("error: No answer from the management API")
        assert len(failed.stderr.splitlines()) == 1


def test_mistakes_in_the_files_are_one_line_each(tmp_path: Path) -> None:
    (tmp_path / "tarry.toml").write_text('destinatons = []\n[[policy]]\nname = "a"\nschedule = ["2sec"]\n', "utf-8")

    failed = CliRunner().invoke(app, ["plan", "-t", str(tmp_path)])

    assert failed.exit_code == 2
    assert [line.partition(str(tmp_path))[0] for line in failed.stderr.splitlines()] == ["error: "] * 3


def test_a_topology_in_the_present_folder_comes_before_the_shipped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "topology").mkdir()
    main = '[names]\nprefix = "mine."\n[[policy]]\nname = "a"\nschedule = ["2s"]\nmax_retries = 1\n'
    (tmp_path / "topology" / "tarry.toml").write_text(main, "utf-8")
    monkeypatch.chdir(tmp_path)

    assert '"mine.delay.2s"' in CliRunner().invoke(app, ["export"]).stdout
    assert '"mine.' not in CliRunner().invoke(app, ["export", "-t", str(shipped())]).stdout


def test_a_queue_that_the_environment_renames_is_the_one_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETRY_QUEUE", "my.requests")

    found = json.loads(CliRunner().invoke(app, ["export"]).stdout)

    assert "my.requests" in {queue["name"] for queue in found["queues"]}
    assert "retry.scheduled" not in {queue["name"] for queue in found["queues"]}
