"""The style sheet, the script and the icon, read once. Browsers may keep them: their addresses name the version."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PREFIX = "/static/"
TYPES = {
    "dashboard.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
KEPT = "public, max-age=3600"


def is_static(path: str) -> bool:
    return path.startswith(PREFIX) or path == "/favicon.ico"


@cache
def _content(name: str) -> bytes:
    return files("tarry.web.dashboard").joinpath("static", name).read_bytes()


async def _file(request: Request) -> Response:
    name = request.path_params.get("name", "icon.svg")
    if name not in TYPES:
        raise HTTPException(404)
    return Response(_content(name), media_type=TYPES[name], headers={"cache-control": KEPT})


ROUTES = (Route(f"{PREFIX}{{name}}", _file), Route("/favicon.ico", _file))
