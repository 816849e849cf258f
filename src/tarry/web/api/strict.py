"""A parameter that is not described is a mistake, and told: a filter with a typing error would list everything."""

from __future__ import annotations

from difflib import get_close_matches
from http import HTTPStatus
from typing import Any

from fastapi import Request

from tarry.web.api import PREFIX
from tarry.web.api.problems import ProblemError


async def known_parameters_only(request: Request) -> None:
    """For every route."""
    if not request.query_params:
        return
    known = _described(request)
    for name in request.query_params:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            meant = f"did you mean {close[0]}?" if close else f"there are: {', '.join(known) or 'none'}."
            raise _wrong(f"query: no such parameter; {meant}")
        if len(request.query_params.getlist(name)) > 1 and not _takes_several(known[name]):
            raise _wrong(f"query.{name}: should be there once")


def _described(request: Request) -> dict[str, Any]:
    """The query parameters of this operation, each with its schema."""
    paths, path = request.app.openapi()["paths"], request.scope["route"].path_format
    operation = paths[path if path in paths else PREFIX + path][request.method.lower()]
    return {one["name"]: one["schema"] for one in operation.get("parameters", []) if one["in"] == "query"}


def _takes_several(schema: dict[str, Any]) -> bool:
    return "array" in {part.get("type") for part in (schema, *schema.get("anyOf", ()))}


def _wrong(said: str) -> ProblemError:
    return ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, said)
