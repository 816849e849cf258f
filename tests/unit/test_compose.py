"""docker-compose.yml, the Dockerfile and the workflow, checked for what would hurt.

No Docker engine is needed: the files are read as YAML, variables are filled in by compose's rules, and the result is
held against the JSON Schema of the compose specification, which check-jsonschema carries.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tarry.service.grafana import DASHBOARDS
from tests.support.prometheus import promtool

ROOT = Path(__file__).parents[2]
PASSWORDS = {"RABBITMQ_PASSWORD": "for-rabbitmq", "POSTGRES_PASSWORD": "for-postgres"}
ONE_SHOT = {"apply"}
OBSERVABILITY = {"prometheus", "grafana", "collector"}
WITHOUT_A_SHELL = {"collector"}
"""An image in which no health check could run."""
VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?::(?P<kind>[-?])(?P<rest>[^}]*))?\}")


def filled_in(value: Any, variables: Mapping[str, str]) -> Any:
    """`${NAME}`, `${NAME:-default}` and `${NAME:?message}` as compose fills them in; empty counts as unset."""

    def one(found: re.Match[str]) -> str:
        given = variables.get(found["name"], "")
        if found["kind"] == "?" and not given:
            raise ValueError(f"required variable {found['name']} is missing a value: {found['rest']}")
        return given or (found["rest"] if found["kind"] == "-" else "")

    if isinstance(value, str):
        return VARIABLE.sub(one, value)
    if isinstance(value, dict):
        return {key: filled_in(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [filled_in(item, variables) for item in value]
    return value


def compose(variables: Mapping[str, str]) -> dict[str, Any]:
    read = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    found: dict[str, Any] = filled_in(read, variables)
    return found


def violations(document: object, schema: str) -> list[str]:
    text = (
        resources.files("check_jsonschema").joinpath("builtin_schemas", "vendor", f"{schema}.json").read_text("utf-8")
    )
    rules = json.loads(text)
    check = jsonschema.validators.validator_for(rules)(rules)
    return [f"{error.json_path}: {error.message}" for error in check.iter_errors(document)]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = compose(PASSWORDS)["services"]
    return found


def test_compose_file_follows_the_specification() -> None:
    assert violations(compose(PASSWORDS), "compose-spec") == []


@pytest.mark.parametrize(
    ("service", "key", "value"),
    [("tarry", "restarts", "always"), ("rabbitmq", "ports", 5672), ("apply", "depends_on", {"rabbitmq": "healthy"})],
)
def test_compose_schema_finds_a_mistake(service: str, key: str, value: object) -> None:
    wrong = copy.deepcopy(compose(PASSWORDS))
    wrong["services"][service][key] = value
    assert violations(wrong, "compose-spec") != []


def test_the_workflow_follows_its_schema_and_calls_the_one_gate() -> None:
    """`on` is a boolean in YAML 1.1, which is what this reader knows."""
    read = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
    read["on"] = read.pop(True)
    assert violations(read, "github-workflows") == []
    steps = [step["run"] for job in read["jobs"].values() for step in job["steps"] if "run" in step]
    assert steps == [".ci/run"]


@pytest.mark.parametrize("name", PASSWORDS)
def test_a_missing_password_is_an_error_that_says_where_to_set_it(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} is missing a value: set it in \.env"):
        compose({other: value for other, value in PASSWORDS.items() if other != name})


def test_the_parts_of_an_installation_are_all_there(services: dict[str, Any]) -> None:
    assert set(services) == {"rabbitmq", "postgres", "apply", "tarry"} | OBSERVABILITY


def test_the_profile_observability_has_what_shows_metrics_and_traces(services: dict[str, Any]) -> None:
    assert {name for name, service in services.items() if "profiles" in service} == OBSERVABILITY
    assert {str(services[name]["profiles"]) for name in OBSERVABILITY} == {"['observability']"}


def test_every_service_has_a_health_check_or_ends_by_itself(services: dict[str, Any]) -> None:
    assert {name for name, service in services.items() if "healthcheck" not in service} == ONE_SHOT | WITHOUT_A_SHELL
    assert services["apply"]["restart"] == "no"


def test_images_are_pinned_to_a_series(services: dict[str, Any]) -> None:
    assert services["rabbitmq"]["image"] == "rabbitmq:4.3-management"
    assert services["postgres"]["image"] == "postgres:18"
    for name in OBSERVABILITY:
        assert re.search(r":v?\d+\.\d+\.\d+$", services[name]["image"]), services[name]["image"]


def test_ports_are_open_to_this_machine_only(services: dict[str, Any]) -> None:
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert published
    assert {port.split(":")[0] for port in published} == {"127.0.0.1"}


def test_messages_and_the_store_are_on_volumes(services: dict[str, Any]) -> None:
    for name, target in (("rabbitmq", "/var/lib/rabbitmq"), ("postgres", "/var/lib/postgresql")):
        assert services[name]["volumes"] == [f"{name}:{target}"]
        assert name in compose(PASSWORDS)["volumes"]
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


def mounted(service: dict[str, Any]) -> dict[str, Path]:
    """What of the checkout is in the container, by the path there."""
    parts = (text.split(":") for text in service["volumes"] if text.startswith("./"))
    return {inside: ROOT / outside for outside, inside, _ in parts}


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def port_of(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)


def test_prometheus_scrapes_the_service_with_the_rules(services: dict[str, Any]) -> None:
    folder = mounted(services["prometheus"])["/etc/prometheus"]
    assert "SUCCESS" in promtool("check", "config", folder / "prometheus.yml")
    config = read(folder / "prometheus.yml")
    assert config["rule_files"] == ["tarry.rules.yml"]
    targets = [
        port_of(one) for job in config["scrape_configs"] for part in job["static_configs"] for one in part["targets"]
    ]
    telemetry = read(mounted(services["collector"])["/etc/tarry/collector.yaml"])["service"]["telemetry"]
    own = telemetry["metrics"]["readers"][0]["pull"]["exporter"]["prometheus"]
    assert targets == [("tarry", int(services["tarry"]["environment"]["HTTP_PORT"])), ("collector", own["port"])]
    assert int(config["global"]["scrape_interval"].removesuffix("s")) * 4 < 60, "data is there within a minute"


def test_grafana_is_provisioned_with_prometheus_and_every_dashboard(services: dict[str, Any]) -> None:
    found = mounted(services["grafana"])
    ((source,), (provider,)) = (
        read(found["/etc/grafana/provisioning"] / path)[key]
        for path, key in (("datasources/prometheus.yaml", "datasources"), ("dashboards/tarry.yaml", "providers"))
    )
    assert (source["type"], port_of(source["url"])) == ("prometheus", ("prometheus", 9090))
    assert "127.0.0.1:9090:9090" in services["prometheus"]["ports"]
    dashboards = found[provider["options"]["path"]]
    assert {path.stem for path in dashboards.glob("*.json")} == {one.name for one in DASHBOARDS}
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (dashboards / Path(home).name).is_file()
    assert home.startswith(provider["options"]["path"] + "/")


def test_the_collector_takes_traces_where_the_service_sends_them(services: dict[str, Any]) -> None:
    config = read(mounted(services["collector"])["/etc/tarry/collector.yaml"])
    (endpoint,) = re.findall(r"OTEL_EXPORTER_OTLP_ENDPOINT=(\S+)", (ROOT / ".env.example").read_text())
    assert port_of(endpoint) == ("collector", port_of(config["receivers"]["otlp"]["protocols"]["http"]["endpoint"])[1])
    traces = config["service"]["pipelines"]["traces"]
    for part in ("receivers", "processors", "exporters"):
        assert set(traces[part]) <= set(config[part])
    assert services["tarry"]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"] == "", "no traces unless they are asked for"


def test_the_example_of_the_settings_names_every_password_and_gives_none() -> None:
    lines = [line for line in (ROOT / ".env.example").read_text().splitlines() if line and not line.startswith("#")]
    assert sorted(lines) == sorted(f"{name}=" for name in PASSWORDS)
    wanted = set(re.findall(r"\$\{(\w+)", (ROOT / "docker-compose.yml").read_text()))
    assert wanted == set(PASSWORDS) | {"HTTP_API", "API_TOKENS", "OTEL_EXPORTER_OTLP_ENDPOINT"}


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
