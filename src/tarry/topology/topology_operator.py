"""Exports the topology as resources of RabbitMQ's messaging topology operator for Kubernetes (rabbitmq.com/v1beta1).

The operator declares each of them through the management API, and tries again where another one is still missing.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tarry.topology.blueprint import blueprint
from tarry.topology.model import Topology
from tarry.topology.objects import Binding, Exchange, Queue

Json = dict[str, Any]
API_VERSION = "rabbitmq.com/v1beta1"
QUEUE_TYPE = "x-queue-type"

LONGEST_NAME = 253
DIGEST = 8
_NOT_ALLOWED = re.compile(r"[^a-z0-9.-]+")
_BETWEEN_DOTS = re.compile(r"-*\.[.-]*")


class Cluster(NamedTuple):
    """The RabbitmqCluster that the resources refer to."""

    name: str
    namespace: str | None = None

    def reference(self) -> Json:
        return {"name": self.name} | ({"namespace": self.namespace} if self.namespace else {})


def operator_resources(topology: Topology, cluster: Cluster, vhost: str = "/") -> Json:
    """A List of Exchange, Queue and Binding resources. tarry's own queues need no Policy: they have arguments."""
    plan = blueprint(topology)
    common = {"vhost": vhost, "rabbitmqClusterReference": cluster.reference()}
    parts = [
        *(_resource("Exchange", exchange.name, _exchange(exchange) | common) for exchange in plan.exchanges),
        *(_resource("Queue", queue.name, _queue(queue) | common) for queue in plan.queues),
        *(_resource("Binding", _label(binding), _binding(binding) | common) for binding in plan.bindings),
    ]
    return {"apiVersion": "v1", "kind": "List", "items": parts}


def operator_text(topology: Topology, cluster: Cluster, vhost: str = "/") -> str:
    """As JSON, which `kubectl apply` reads; one resource per line, so that a change is readable in a diff."""
    whole = operator_resources(topology, cluster, vhost)
    lines = ",\n".join(f"  {json.dumps(part, ensure_ascii=False)}" for part in whole["items"])
    return f'{{"apiVersion": "v1", "kind": "List", "items": [\n{lines}\n]}}\n'


def resource_name(name: str) -> str:
    """A name that Kubernetes accepts; with a digest where something of the original had to be changed."""
    found = ".".join(_parts(name))[:LONGEST_NAME].rstrip(".-")
    if found == name:
        return found
    digest = hashlib.sha256(name.encode()).hexdigest()[:DIGEST]
    return f"{found[: LONGEST_NAME - DIGEST - 1].rstrip('.-')}-{digest}".lstrip("-")


def _parts(name: str) -> Iterator[str]:
    text = _BETWEEN_DOTS.sub(".", _NOT_ALLOWED.sub("-", name.lower()))
    yield from (part for part in text.strip(".-").split(".") if part)


def _label(binding: Binding) -> str:
    """Unique for each binding; it always gets a digest, because it has characters that Kubernetes does not accept."""
    return f"{binding.source}~{binding.key}~{binding.destination_type}~{binding.destination}"


def _resource(kind: str, name: str, spec: Json) -> Json:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": resource_name(name)}, "spec": spec}


def _exchange(exchange: Exchange) -> Json:
    spec = {"name": exchange.name, "type": exchange.type, "durable": True, "autoDelete": False}
    return spec | _arguments(exchange.arguments.as_dict())


def _queue(queue: Queue) -> Json:
    """Deleting the resource must not delete a queue in which messages wait."""
    arguments = queue.arguments.as_dict()
    spec = {
        "name": queue.name,
        "type": arguments.pop(QUEUE_TYPE),
        "durable": True,
        "autoDelete": False,
        "deletionPolicy": "retain",
    }
    return spec | _arguments(arguments)


def _binding(binding: Binding) -> Json:
    spec = {"source": binding.source, "destination": binding.destination, "destinationType": binding.destination_type}
    return spec | ({"routingKey": binding.key} if binding.key else {})


def _arguments(arguments: Json) -> Json:
    return {"arguments": arguments} if arguments else {}
