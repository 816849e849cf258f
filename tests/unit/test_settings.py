from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

from tarry.cli import config
from tarry.cli.output import Commands
from tarry.errors import SettingsError
from tarry.settings import load_settings, read_settings
from tarry.settings.masking import mask
from tarry.settings.reference import settings_markdown
from tarry.settings.sources import NAMES, given_from
from tests.support.cli import run_cli

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*NAMES.values(), "TARRY_SETTINGS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text('HTTP_PORT = 3\nservice_name = "from the file"\nTARRY_LOG = "console"\n')
    return path


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(
    monkeypatch: pytest.MonkeyPatch, file: Path
) -> None:
    assert load_settings().http_port == 8086
    assert load_settings(file).http_port == 3
    monkeypatch.setenv("HTTP_PORT", "2")
    assert load_settings(file).http_port == 2
    assert load_settings(file, http_port=1).http_port == 1
    assert load_settings(file, HTTP_PORT="0").http_port == 0


def test_every_setting_says_where_it_came_from(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    monkeypatch.setenv("SERVICE_NAME", "shop")
    settings, origins = read_settings(file, batch_size=7)
    assert (settings.service_name, settings.log_format, settings.batch_size) == ("shop", "console", 7)
    assert {field: origins[field] for field in ("batch_size", "service_name", "log_format", "retry_queue")} == {
        "batch_size": "flag",
        "service_name": "environment",
        "log_format": str(file),
        "retry_queue": "default",
    }


def test_the_file_may_be_named_by_the_environment(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    monkeypatch.setenv("TARRY_SETTINGS", str(file))
    assert load_settings().service_name == "from the file"


def test_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    monkeypatch.setenv("HTTP_PORT", "")
    settings, origins = read_settings(file)
    assert (settings.http_port, origins["http_port"]) == (3, str(file))


def test_the_names_of_the_invoice_platform_are_kept() -> None:
    wanted = {"SERVICE_NAME", "HTTP_PORT", "RABBITMQ_URL", "RETRY_QUEUE", "MANUAL_REVIEW_QUEUE", "DATABASE_URL"}
    assert set(NAMES.values()) >= wanted | {"DEFAULT_MAX_RETRIES", "BASE_DELAY_MS", "MAX_DELAY_MS"}


def test_settings_accept_a_poll_interval_that_nothing_uses(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """S0's retry-scheduler has it, in its environment or in a file."""
    file = tmp_path / "settings.toml"
    file.write_text("retry_poll_interval_ms = 500\n")
    assert read_settings(file)[0].retry_poll_interval_ms == 500
    monkeypatch.setenv("RETRY_POLL_INTERVAL_MS", "1000")
    assert read_settings(file)[1]["retry_poll_interval_ms"] == "environment"


def test_all_mistakes_are_told_at_once_and_no_secret_with_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("htp_port = 5\nbatch_size = 0\nfrobnicate = true\n")
    monkeypatch.setenv("HTTP_PORT", "abc")
    monkeypatch.setenv("RABBITMQ_URL", "http://user:geheim@host")
    monkeypatch.setenv("RABBITMQ_MANAGEMENT_URL", "amqp://user:geheim@host")
    monkeypatch.setenv("DATABASE_URL", "geheim geheim")
    monkeypatch.setenv("BASE_DELAY_MS", "-1")
    with pytest.raises(SettingsError) as caught:
        load_settings(wrong, log_format="xml")
    assert str(caught.value).splitlines() == [
        f"{wrong}: htp_port: no such setting; did you mean HTTP_PORT?",
        f"{wrong}: frobnicate: no such setting; `tarry config` lists them all",
        "HTTP_PORT (environment): `abc` should be a whole number from 0 to 65535",
        "RABBITMQ_URL (environment): This is not an AMQP address: write amqp://user:password@host:5672/vhost",
        "RABBITMQ_MANAGEMENT_URL (environment): This is not a management address: write http://host:15672",
        "DATABASE_URL (environment): This is not a Postgres address: write postgresql://user:password@host/tarry",
        "BASE_DELAY_MS (environment): `-1` should be a whole number, 1 or more",
        f"TARRY_BATCH ({wrong}): `0` should be a whole number from 1 to 5000",
        "TARRY_LOG (flag): `xml` should be 'json' or 'console'",
    ]


def test_delays_that_disagree_are_a_mistake() -> None:
    with pytest.raises(SettingsError, match=r"MAX_DELAY_MS \(5\) is below BASE_DELAY_MS \(10\)"):
        load_settings(base_delay_ms=10, max_delay_ms=5)


def test_a_file_that_cannot_be_read_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot be read: .* Correct it, or --settings or TARRY_SETTINGS"):
        load_settings(tmp_path / "nowhere.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("= 5")
    with pytest.raises(SettingsError, match="not TOML"):
        load_settings(broken)


def test_no_database_is_an_error_only_where_one_is_needed() -> None:
    settings = load_settings()
    with pytest.raises(SettingsError, match="DATABASE_URL is not set"):
        _ = settings.dsn
    assert load_settings(database_url="postgresql://h/t").dsn == "postgresql://h/t"


def test_the_environment_overrides_names_and_the_default_policy() -> None:
    settings = load_settings(
        topology=ROOT / "topology",
        retry_queue="invoices.retry",
        manual_review_queue="invoices.review",
        default_max_retries=5,
        base_delay_ms=1_000,
        max_delay_ms=30_000,
    )
    topology = settings.read_topology()
    policy = topology.policies[-1]
    assert (topology.names.scheduled, topology.names.review) == ("invoices.retry", "invoices.review")
    assert [policy.delay(count) for count in range(6)] == [1_000, 2_000, 4_000, 8_000, 16_000, 30_000]
    assert policy.max_retries == 5


@pytest.mark.parametrize(
    ("address", "masked"),
    [
        ("amqp://guest:guest@localhost:5672/", "amqp://guest:***@localhost:5672/"),
        ("amqps://u:p%40ss:w@[::1]:5671/v", "amqps://u:***@[::1]:5671/v"),
        ("amqp://u:a@b@host/v", "amqp://u:***@host/v"),
        ("amqp://host/v", "amqp://host/v"),
        (
            "postgresql://u:geheim@h/t?sslmode=require&password=geheim",
            "postgresql://u:***@h/t?sslmode=require&password=***",
        ),
        ("postgresql:///t?sslpassword=geheim&host=h", "postgresql:///t?sslpassword=***&host=h"),
        ("host=h user=u password=geheim dbname=t", "host=h user=u password=*** dbname=t"),
        ("password='ge heim' host=h", "password=*** host=h"),
        ("amqp://u:ge/heim@host/v", "amqp://u:***@host/v"),
    ],
)
def test_passwords_are_hidden_wherever_they_stand(address: str, masked: str) -> None:
    assert mask(address) == masked
    assert "heim" not in masked


@pytest.fixture
def tarry() -> typer.Typer:
    app = typer.Typer(cls=Commands, pretty_exceptions_enable=False)
    config.register(app)
    app.command("other")(lambda: None)
    return app


def test_the_command_shows_values_and_origins(tarry: typer.Typer, file: Path) -> None:
    flags = ["--settings", str(file), "--set", "RABBITMQ_URL=amqp://u:geheim@h/v", "--set", "batch_size=9"]
    result = run_cli(["config", *flags, "--json"], {"RETRY_QUEUE": "again"})
    found = json.loads(result.stdout)
    assert found["RABBITMQ_URL"] == {"value": "amqp://u:***@h/v", "from": "flag"}
    assert found["TARRY_BATCH"] == {"value": 9, "from": "flag"}
    assert found["RETRY_QUEUE"] == {"value": "again", "from": "environment"}
    assert found["HTTP_PORT"] == {"value": 3, "from": str(file)}
    assert found["DATABASE_URL"] == {"value": None, "from": "default"}


def test_the_command_prints_a_table_for_people(tarry: typer.Typer) -> None:
    rows = run_cli(["config"], {"HTTP_PORT": "9"}).stdout.splitlines()
    assert ["HTTP_PORT", "9", "environment"] in [row.split() for row in rows]
    assert ["DATABASE_URL", "(not", "set)", "default"] in [row.split() for row in rows]


def test_a_set_without_a_value_is_a_mistake() -> None:
    with pytest.raises(SettingsError, match="--set X: write NAME=VALUE"):
        given_from(["X"])
    assert given_from(["A=b=c"]) == {"A": "b=c"}


def test_the_reference_page_is_fresh() -> None:
    page = ROOT / "docs" / "settings.md"
    assert page.read_text(encoding="utf-8") == settings_markdown(), "run `tarry config --markdown > docs/settings.md`"


@pytest.mark.parametrize("url", ["host", "ftp://host/path", "http://", "http://user:geheim#1@host/", "http://a b/"])
def test_a_credit_check_needs_an_address_of_http_and_quotes_nothing(url: str) -> None:
    with pytest.raises(SettingsError, match="write http://host/path or https://host/path") as caught:
        load_settings(manual_retry_check_url=url)
    assert "geheim" not in str(caught.value)


def test_a_credit_check_may_be_private_and_its_password_is_masked() -> None:
    url = "http://user:geheim@10.0.0.1:8080/may-retry?token=geheim"
    found = load_settings(manual_retry_check_url=url)
    assert found.manual_retry_check_url is not None
    assert found.manual_retry_check_url.get_secret_value() == url
    assert mask(url) == "http://user:***@10.0.0.1:8080/may-retry?token=***"
