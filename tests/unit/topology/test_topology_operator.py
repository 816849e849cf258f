"""Against the fields of the operator's own resource definitions, rabbitmq.com/v1beta1 (release 1.20)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tarry.topology.blueprint import blueprint
from tarry.topology.definitions import definitions
from tarry.topology.topology_operator import Cluster, operator_resources, operator_text, resource_name
from tests.support.cli import run_cli
from tests.unit.topology.examples import topology

TEXT, FLAG, ANYTHING = {"type": "string"}, {"type": "boolean"}, {"type": "object"}
REFERENCE = {
    "type": "object",
    "properties": {"name": TEXT, "namespace": TEXT, "connectionSecret": ANYTHING},
    "additionalProperties": False,
}
COMMON = {"name": TEXT, "vhost": TEXT, "rabbitmqClusterReference": REFERENCE, "arguments": ANYTHING}
SPECS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "Exchange": (COMMON | {"type": TEXT, "durable": FLAG, "autoDelete": FLAG}, ["name", "rabbitmqClusterReference"]),
    "Queue": (
        COMMON
        | {"type": TEXT, "durable": FLAG, "autoDelete": FLAG, "deleteIfEmpty": FLAG, "deleteIfUnused": FLAG}
        | {"deletionPolicy": {"enum": ["delete", "retain"]}},
        ["name", "rabbitmqClusterReference"],
    ),
    "Binding": (
        {name: rule for name, rule in COMMON.items() if name != "name"}
        | {"source": TEXT, "destination": TEXT, "routingKey": TEXT}
        | {"destinationType": {"enum": ["exchange", "queue"]}},
        ["rabbitmqClusterReference"],
    ),
}
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
CLUSTER = Cluster("rabbit", "brokers")


def valid(resource: dict[str, Any]) -> None:
    properties, required = SPECS[resource["kind"]]
    rules = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    jsonschema.validate(resource["spec"], rules)
    assert set(resource) == {"apiVersion", "kind", "metadata", "spec"}
    assert resource["apiVersion"] == "rabbitmq.com/v1beta1"


def test_operator_resources_have_only_fields_that_the_operator_knows() -> None:
    whole = operator_resources(topology(), CLUSTER)
    assert (whole["apiVersion"], whole["kind"]) == ("v1", "List")
    for resource in whole["items"]:
        valid(resource)
    wrong = whole["items"][0] | {"spec": whole["items"][0]["spec"] | {"internal": False}}
    with pytest.raises(jsonschema.ValidationError):
        valid(wrong)


def test_operator_resources_declare_what_definitions_declare() -> None:
    items = operator_resources(topology(), CLUSTER, "a/b")["items"]
    assert len(items) == len(blueprint(topology()))
    wanted = definitions(topology(), "a/b")
    specs: dict[str, list[dict[str, Any]]] = {"Exchange": [], "Queue": [], "Binding": []}
    for item in items:
        specs[item["kind"]].append(item["spec"])
    assert [(one["name"], one["type"], one.get("arguments", {})) for one in specs["Exchange"]] == [
        (one["name"], one["type"], one["arguments"]) for one in wanted["exchanges"]
    ]
    assert [
        (one["name"], one["vhost"], {"x-queue-type": one["type"]} | one.get("arguments", {})) for one in specs["Queue"]
    ] == [(one["name"], one["vhost"], one["arguments"]) for one in wanted["queues"]]
    keys = ("source", "destination", "routingKey", "destinationType")
    assert [tuple(one.get(key, "") for key in keys) for one in specs["Binding"]] == [
        (one["source"], one["destination"], one["routing_key"], one["destination_type"]) for one in wanted["bindings"]
    ]


def test_operator_resources_keep_queues_when_they_are_deleted() -> None:
    queues = [item for item in operator_resources(topology(), CLUSTER)["items"] if item["kind"] == "Queue"]
    assert {item["spec"]["deletionPolicy"] for item in queues} == {"retain"}


def test_operator_resources_have_names_that_kubernetes_accepts_each_once() -> None:
    items = operator_resources(topology(), CLUSTER)["items"]
    names = [(item["kind"], item["metadata"]["name"]) for item in items]
    assert len(set(names)) == len(names)
    assert all(SUBDOMAIN.fullmatch(name) for _, name in names)


@pytest.mark.parametrize("name", ["Retry_Queue", "retry queue", "ÄÖ", "___", "a..b", "-a-", "a." * 200, "x" * 300])
def test_a_resource_name_is_accepted_and_differs_for_similar_names(name: str) -> None:
    made = resource_name(name)
    assert SUBDOMAIN.fullmatch(made)
    assert len(made) <= 253
    assert made != resource_name(name + "_")


def test_the_text_has_one_resource_a_line_and_is_json() -> None:
    text = operator_text(topology(), Cluster("rabbit"))
    assert json.loads(text) == operator_resources(topology(), Cluster("rabbit"))
    assert text.count("\n") == len(blueprint(topology())) + 2


def test_export_writes_resources_for_a_cluster_in_another_namespace(tmp_path: Path) -> None:
    output = tmp_path / "topology.json"
    arguments = ["topology", "export", "--format", "topology-operator", "--cluster", "brokers/rabbit"]
    assert run_cli([*arguments, "-o", str(output)]).exit_code == 0
    references = {
        json.dumps(item["spec"]["rabbitmqClusterReference"]) for item in json.loads(output.read_text())["items"]
    }
    assert references == {'{"name": "rabbit", "namespace": "brokers"}'}
    assert run_cli([*arguments, "--check", str(output)]).exit_code == 0


def test_export_refuses_users_with_the_topology_operator() -> None:
    refused = run_cli(["topology", "export", "--format", "topology-operator", "--users"])
    assert refused.exit_code != 0
    assert "create User and Permission resources" in refused.output
