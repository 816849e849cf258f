"""The API's description: what the routes say of themselves, and the answers and headers that all of them have."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from tarry.web.api.idempotency import HEADER, PATTERN
from tarry.web.api.problems import MEDIA_TYPE, Mistake, Problem

Json = dict[str, Any]

READ = {
    HTTPStatus.UNAUTHORIZED: "No token, or one that the service does not know.",
    HTTPStatus.FORBIDDEN: "The token may only look; or, without tokens, the request comes from another site.",
    HTTPStatus.NOT_FOUND: "Nothing is known by that id or name.",
    HTTPStatus.CONFLICT: "Several fit that id, or that beginning of one; the detail lists them.",
    HTTPStatus.REQUEST_TIMEOUT: "The body did not come in time.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The request is larger than API_BODY_LIMIT.",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "The body is not application/json.",
    HTTPStatus.MISDIRECTED_REQUEST: "Without tokens the API answers only to the names of its own machine.",
    HTTPStatus.UNPROCESSABLE_ENTITY: "The request is not well-formed; `errors` says where.",
    HTTPStatus.TOO_MANY_REQUESTS: "More requests than API_RATE; `Retry-After` says how long to wait.",
    HTTPStatus.INTERNAL_SERVER_ERROR: "A mistake in tarry; `id` is in its log.",
    HTTPStatus.SERVICE_UNAVAILABLE: "Postgres or the broker is away; nothing was changed.",
    HTTPStatus.GATEWAY_TIMEOUT: "No answer within API_TIMEOUT_S. An action goes on.",
}
ACT = READ | {
    HTTPStatus.BAD_REQUEST: "It is not in a state in which that can be done; the detail says which.",
    HTTPStatus.CONFLICT: "Being processed, already done or already scheduled; or the same key is under way.",
}
KEY: Json = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "description": "The same key and request again, within a day, get the first answer; nothing is done twice.",
    "schema": {"type": "string", "pattern": PATTERN},
}
PERSON: Json = {
    "name": "X-Requested-By",
    "in": "header",
    "required": False,
    "description": "Who wants this; recorded behind the token's name. `requested_by` in the body goes before it.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 100},
}


def describe(app: FastAPI) -> None:
    """Made at the first look, and kept."""

    def openapi() -> Json:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, routes=app.routes, description=app.description)
            app.openapi_schema = _completed(made)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign] # this is how FastAPI wants it done


def _completed(schema: Json) -> Json:
    models = schema.setdefault("components", {}).setdefault("schemas", {})
    for model in (Problem, Mistake):
        models[model.__name__] = model.model_json_schema(ref_template="#/components/schemas/{model}")
        models[model.__name__].pop("$defs", None)
    for unused in ("HTTPValidationError", "ValidationError"):
        models.pop(unused, None)
    for path, operations in schema["paths"].items():
        if path.startswith("/api/"):
            for method, operation in operations.items():
                _complete(operation, acts=method != "get")
    return schema


def _complete(operation: Json, *, acts: bool) -> None:
    for status, text in sorted((ACT if acts else READ).items()):
        operation["responses"][str(status.value)] = _answer(text)
    if acts:
        operation.setdefault("parameters", []).extend([KEY, PERSON])


def _answer(text: str) -> Json:
    return {"description": text, "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
