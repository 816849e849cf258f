"""Exports the topology as a definitions file.

It can be imported at boot, with `rabbitmqctl import_definitions`, or in the management UI. The broker silently skips
objects that exist already, even if their arguments differ: run verify afterwards.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from dataclasses import dataclass
from typing import Any

from tarry.amqp.declare import Rights
from tarry.topology.blueprint import blueprint
from tarry.topology.model import Topology
from tarry.topology.objects import Binding, Exchange, Queue
from tarry.topology.rights import deploy_rights, router_rights

Json = dict[str, Any]
SALT_BYTES = 4


@dataclass(frozen=True, slots=True)
class BrokerUser:
    """A broker user with only the permissions that its role needs."""

    name: str
    password_hash: str
    tags: tuple[str, ...]
    rights: Rights


def deploy_user(topology: Topology, password: str, name: str = "tarry-deploy") -> BrokerUser:
    """The user that applies topologies and attaches queues; its tag allows the management API and setting policies."""
    return BrokerUser(name, hashed(password), ("policymaker",), deploy_rights(topology))


def router_user(topology: Topology, password: str, name: str = "tarry-router") -> BrokerUser:
    """The user that runs the service; the tag lets it check the topology through the management API."""
    return BrokerUser(name, hashed(password), ("management",), router_rights(topology))


def definitions(topology: Topology, vhost: str = "/", users: tuple[BrokerUser, ...] = ()) -> Json:
    """The content of the file; without `users` it grants no permissions, and the broker's users stay as they are."""
    plan = blueprint(topology)
    people: Json = {
        "users": [_user(user) for user in users],
        "permissions": [_permission(user, vhost) for user in users],
    }
    return {
        "vhosts": [{"name": vhost}],
        **(people if users else {}),
        "exchanges": [_exchange(exchange, vhost) for exchange in plan.exchanges],
        "queues": [_queue(queue, vhost) for queue in plan.queues],
        "bindings": [_binding(binding, vhost) for binding in plan.bindings],
    }


def definitions_text(topology: Topology, vhost: str = "/", users: tuple[BrokerUser, ...] = ()) -> str:
    """One object per line, so that a change of the topology is readable in a diff."""
    sections = definitions(topology, vhost, users)
    return (
        "{\n" + ",\n".join(f"{json.dumps(name)}: [\n{_lines(parts)}\n]" for name, parts in sections.items()) + "\n}\n"
    )


def _lines(parts: list[Json]) -> str:
    return ",\n".join(f"  {json.dumps(part, ensure_ascii=False)}" for part in parts)


def hashed(password: str, salt: bytes | None = None) -> str:
    """The hash as RabbitMQ stores it: four bytes of salt, then SHA-256 of salt and password, in base64."""
    salt = os.urandom(SALT_BYTES) if salt is None else salt
    return base64.b64encode(salt + hashlib.sha256(salt + password.encode()).digest()).decode()


def _user(user: BrokerUser) -> Json:
    return {
        "name": user.name,
        "password_hash": user.password_hash,
        "hashing_algorithm": "rabbit_password_hashing_sha256",
        "tags": list(user.tags),
        "limits": {},
    }


def _permission(user: BrokerUser, vhost: str) -> Json:
    rights = user.rights
    return {
        "user": user.name,
        "vhost": vhost,
        "configure": rights.configure,
        "write": rights.write,
        "read": rights.read,
    }


def _exchange(exchange: Exchange, vhost: str) -> Json:
    return {
        "name": exchange.name,
        "vhost": vhost,
        "type": exchange.type,
        "durable": True,
        "auto_delete": False,
        "internal": False,
        "arguments": exchange.arguments.as_dict(),
    }


def _queue(queue: Queue, vhost: str) -> Json:
    return {
        "name": queue.name,
        "vhost": vhost,
        "durable": True,
        "auto_delete": False,
        "arguments": queue.arguments.as_dict(),
    }


def _binding(binding: Binding, vhost: str) -> Json:
    return {
        "source": binding.source,
        "vhost": vhost,
        "destination": binding.destination,
        "destination_type": binding.destination_type,
        "routing_key": binding.key,
        "arguments": {},
    }
