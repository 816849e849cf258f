"""The OpenAPI description: the routes, and the responses and headers that all of them share."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from tarry.web.api.idempotency import HEADER, PATTERN
from tarry.web.api.problems import MEDIA_TYPE, Mistake, Problem

Json = dict[str, Any]

READ = {
    HTTPStatus.UNAUTHORIZED: "No token, or an unknown one.",
    HTTPStatus.FORBIDDEN: "The token lacks the role, or is limited to some queues and the request concerns others too; "
    "or, without tokens, the request comes from another site.",
    HTTPStatus.NOT_FOUND: "There is nothing with that id or name.",
    HTTPStatus.CONFLICT: "Several match that id or prefix; the detail lists them.",
    HTTPStatus.REQUEST_TIMEOUT: "The body did not arrive in time.",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "The request is larger than API_BODY_LIMIT.",
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE: "The body is not application/json.",
    HTTPStatus.MISDIRECTED_REQUEST: "Without tokens the API accepts only local host names.",
    HTTPStatus.UNPROCESSABLE_ENTITY: "The request is not well-formed; `errors` says where.",
    HTTPStatus.TOO_MANY_REQUESTS: "More requests than API_RATE; `Retry-After` says how long to wait.",
    HTTPStatus.INTERNAL_SERVER_ERROR: "A bug in tarry; `id` identifies it in the log.",
    HTTPStatus.SERVICE_UNAVAILABLE: "Postgres or the broker is unavailable; nothing was changed.",
    HTTPStatus.GATEWAY_TIMEOUT: "No answer within API_TIMEOUT_S. An action continues.",
}
ACT = READ | {
    HTTPStatus.BAD_REQUEST: "Its state does not allow the action; the detail names the state.",
    HTTPStatus.CONFLICT: "In progress, already done or already scheduled; or a request with that key is in progress.",
}
RETRY = ACT | {
    HTTPStatus.PAYMENT_REQUIRED: "The credit check refused the retry; `required` and `available` are credits.",
    HTTPStatus.SERVICE_UNAVAILABLE: "Postgres, the broker or the credit check is unavailable; nothing was changed.",
}
KEY: Json = {
    "name": HEADER,
    "in": "header",
    "required": False,
    "description": "A request repeated with the same key within a day returns the first answer, and acts only once.",
    "schema": {"type": "string", "pattern": PATTERN},
}
PERSON: Json = {
    "name": "X-Requested-By",
    "in": "header",
    "required": False,
    "description": "Who requests this; recorded after the name of the token. `requested_by` in the body overrides it.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 100},
}


def describe(app: FastAPI) -> None:
    """Builds the description at the first request and keeps it."""

    def openapi() -> Json:
        if app.openapi_schema is None:
            made = get_openapi(title=app.title, version=app.version, routes=app.routes, description=app.description)
            app.openapi_schema = _completed(made)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign] # as documented by FastAPI


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
                answers = RETRY if path.endswith("/retry") else READ if method == "get" else ACT
                _complete(operation, answers, acts=method != "get")
    return schema


def _complete(operation: Json, answers: dict[HTTPStatus, str], *, acts: bool) -> None:
    for status, text in sorted(answers.items()):
        operation["responses"][str(status.value)] = _answer(text)
    if acts:
        operation.setdefault("parameters", []).extend([KEY, PERSON])


def _answer(text: str) -> Json:
    return {"description": text, "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
