"""docker-compose.yml and the Dockerfile, checked for what would hurt. Compose itself reads its file, by its rules."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PASSWORDS = {"RABBITMQ_PASSWORD": "for-rabbitmq", "POSTGRES_PASSWORD": "for-postgres"}
ONE_SHOT = {"apply"}


def compose(passwords: dict[str, str]) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name not in PASSWORDS} | passwords
    arguments = ["--env-file", os.devnull, "--file", str(ROOT / "docker-compose.yml"), "config", "--format", "json"]
    return subprocess.run([*program(), *arguments], env=environment, capture_output=True, text=True, check=False)


def program() -> list[str]:
    """As a plugin of docker, or by itself."""
    for candidate in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(candidate[0]):
            said = subprocess.run([*candidate, "version", "--short"], capture_output=True, text=True, check=False)
            if said.returncode == 0 and not said.stdout.startswith(("1.", "v1.")):
                return candidate
    pytest.skip("neither `docker compose` nor docker-compose 2 is here to read docker-compose.yml")


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    done = compose(PASSWORDS)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["services"]
    return found


def test_a_missing_password_is_an_error_that_says_where_to_set_it() -> None:
    for name in PASSWORDS:
        done = compose({other: value for other, value in PASSWORDS.items() if other != name})
        assert done.returncode != 0
        assert f"{name} is missing a value: set it in .env" in done.stderr


def test_the_parts_of_an_installation_are_all_there(services: dict[str, Any]) -> None:
    assert set(services) == {"rabbitmq", "postgres", "apply", "tarry"}


def test_every_service_has_a_health_check_or_ends_by_itself(services: dict[str, Any]) -> None:
    assert {name for name, service in services.items() if "healthcheck" not in service} == ONE_SHOT
    assert services["apply"]["restart"] == "no"


def test_images_are_pinned_to_a_series(services: dict[str, Any]) -> None:
    assert services["rabbitmq"]["image"] == "rabbitmq:4.3-management"
    assert services["postgres"]["image"] == "postgres:18"


def test_ports_are_open_to_this_machine_only(services: dict[str, Any]) -> None:
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert published
    assert {port["host_ip"] for port in published} == {"127.0.0.1"}


def test_what_holds_messages_and_books_is_on_a_volume(services: dict[str, Any]) -> None:
    for name, target in (("rabbitmq", "/var/lib/rabbitmq"), ("postgres", "/var/lib/postgresql")):
        assert [(one["type"], one["target"]) for one in services[name]["volumes"]] == [("volume", target)]
    assert services["rabbitmq"]["hostname"] == "rabbitmq"


def test_each_part_waits_for_those_it_needs(services: dict[str, Any]) -> None:
    def conditions(name: str) -> dict[str, str]:
        return {other: about["condition"] for other, about in services[name]["depends_on"].items()}

    assert conditions("apply") == {"rabbitmq": "service_healthy"}
    assert conditions("tarry") == {
        "apply": "service_completed_successfully",
        "rabbitmq": "service_healthy",
        "postgres": "service_healthy",
    }


def test_the_service_knows_where_the_others_are(services: dict[str, Any]) -> None:
    environment = services["tarry"]["environment"]
    assert environment["RABBITMQ_URL"] == "amqp://tarry:for-rabbitmq@rabbitmq:5672/"
    assert environment["DATABASE_URL"] == "postgresql://tarry:for-postgres@postgres:5432/tarry"
    assert services["rabbitmq"]["environment"]["RABBITMQ_DEFAULT_PASS"] == "for-rabbitmq"
    assert services["postgres"]["environment"]["POSTGRES_PASSWORD"] == "for-postgres"


def test_our_own_containers_may_do_little(services: dict[str, Any]) -> None:
    for name in ("apply", "tarry"):
        assert services[name]["read_only"]
        assert services[name]["cap_drop"] == ["ALL"]
        assert services[name]["security_opt"] == ["no-new-privileges:true"]


def test_the_example_of_the_settings_names_every_password_and_gives_none() -> None:
    lines = [line for line in (ROOT / ".env.example").read_text().splitlines() if line and not line.startswith("#")]
    assert sorted(lines) == sorted(f"{name}=" for name in PASSWORDS)
    wanted = set(re.findall(r"\$\{(\w+)", (ROOT / "docker-compose.yml").read_text()))
    assert wanted == set(PASSWORDS) | {"HTTP_API", "API_TOKENS"}


def test_the_api_is_off_unless_it_is_turned_on_with_tokens(services: dict[str, Any]) -> None:
    environment = services["tarry"]["environment"]
    assert (environment["HTTP_HOST"], environment["HTTP_API"], environment["API_TOKENS"]) == ("0.0.0.0", "off", "")  # noqa: S104


def test_the_image_runs_as_nobody_in_particular_from_hashed_packages() -> None:
    text = (ROOT / "Dockerfile").read_text()
    last = text.rpartition("\nFROM ")[2]
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    assert re.search(r"^FROM python:3\.\d+-slim AS build$", text, re.MULTILINE)
    installs = re.findall(r"pip install .*", text)
    assert len(installs) == 4
    assert [("--require-hashes" in line) or ("--no-deps dist/" in line) for line in installs] == [True] * 4


def test_the_image_is_made_of_files_that_are_sent_to_the_builder() -> None:
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert sent == {"LICENSE", "README.md", "pyproject.toml", "requirements.lock", "src", "topology"}
    assert all((ROOT / name).exists() for name in sent)


def test_the_lock_has_the_tools_that_the_image_is_built_with() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    for tool in ("uv", "hatchling"):
        assert re.search(rf"^{tool}==\S+ \\$", lock, re.MULTILINE), f"{tool} is not in requirements.lock: run make lock"
