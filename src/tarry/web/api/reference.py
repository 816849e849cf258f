"""Generates docs/api-reference.md: every path of the HTTP API, from its OpenAPI description."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from tarry import __version__
from tarry.topology.reference import cell, key_table, kind_of, model_of
from tarry.web.api import PREFIX
from tarry.web.api.openapi import describe
from tarry.web.app import ROUTERS

Json = dict[str, Any]

_HEAD = f"""# Every path of the HTTP API

This page is generated from the OpenAPI description by `make generate`. A service has the same, with the models of its
answers, at `{PREFIX}/openapi.json`. How to use the API, its tokens, lists and errors are in [The HTTP API](api.md). All
paths begin with `{PREFIX}`.

A `POST` takes two headers: `Idempotency-Key` (a request repeated with the same key within a day returns the first
answer, and acts only once) and `X-Requested-By` (who requests it; recorded after the name of the token).
"""


def api_markdown() -> str:
    """The whole page."""
    schema = openapi()
    models = schema["components"]["schemas"]
    found = [
        (operation.get("tags", ["other"])[0], method.upper(), path, operation)
        for path, operations in schema["paths"].items()
        for method, operation in operations.items()
    ]
    parts = [_HEAD]
    for tag in dict.fromkeys(tag for tag, *_ in found):
        parts.append(f"## {tag.capitalize()}\n")
        for _, method, path, operation in (one for one in found if one[0] == tag):
            parts += _operation(method, path.removeprefix(PREFIX), operation, models)
    return "\n".join(parts)


def openapi() -> Json:
    """The description of the API without a service."""
    app = FastAPI(title="tarry", version=__version__)
    for router in ROUTERS:
        app.include_router(router, prefix=PREFIX)
    describe(app)
    return dict(app.openapi())


def _operation(method: str, path: str, operation: Json, models: Json) -> list[str]:
    parts = [f"### {method} {path}\n"]
    text = cell(operation.get("description", ""))
    parts.append(f"**{operation['summary']}.** {text}\n" if text else f"**{operation['summary']}.**\n")
    given = [one for one in operation.get("parameters", []) if one["in"] in ("path", "query")]
    if given:
        rows = [_parameter(one, models) for one in given]
        parts.append("\n".join(["| parameter | in | type | meaning |", "|---|---|---|---|", *rows]) + "\n")
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body is not None:
        parts += _body(body, models)
    answer = operation["responses"].get("200", operation["responses"].get("201", {}))
    made = answer.get("content", {}).get("application/json", {}).get("schema", {})
    name = _name(made, models)
    if name:
        parts.append(f"Answers with {name}.\n")
    return parts


def _parameter(one: Json, models: Json) -> str:
    field = one["schema"]
    required = " (required)" if one.get("required") and one["in"] == "query" else ""
    meaning = one.get("description") or field.get("description", "")
    return f"| `{one['name']}`{required} | {one['in']} | {kind_of(field, models)} | {cell(meaning)} |"


def _body(schema: Json, models: Json) -> list[str]:
    choices = [one for one in schema.get("anyOf", [schema]) if one.get("type") != "null"]
    parts = []
    for choice in choices:
        model = model_of(choice, models)
        if "properties" not in model:
            continue
        parts += ["The body is an object:\n", key_table(model, models)]
    return parts


def _name(schema: Json, models: Json) -> str:
    """The model of the answer, as it is called in the OpenAPI description."""
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if schema.get("type") == "array":
        inner = _name(schema.get("items", {}), models)
        return f"a list of {inner}" if inner else ""
    return ""
