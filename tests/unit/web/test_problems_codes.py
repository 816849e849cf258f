"""The stable codes: each is provoked, here or in the tests named here, and the table in docs/api.md has all of them."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from fastapi import FastAPI
from typer.testing import CliRunner

from tarry.cli.main import app as tarry
from tarry.cli.options import AsJson
from tarry.cli.output import Commands
from tarry.errors import (
    ApiError,
    AuditError,
    AuditUnavailableError,
    BrokerError,
    BrokerUnreachableError,
    Code,
    ConflictError,
    ControlError,
    EmbeddedError,
    MissingOnBrokerError,
    NotDrainableError,
    NotFoundError,
    OutputError,
    SourceError,
    TarryError,
    TopologyError,
)
from tarry.operations.idempotency import ReusedKeyError
from tarry.settings.tokens import Role, new_token
from tarry.web.api import http_request, problems
from tarry.web.api.auth import Access
from tarry.web.api.middleware import MOST_AT_ONCE, ApiRules, Middleware, Rates

ROOT = Path(__file__).parents[3]
ROW = re.compile(r"^\| `(\w+)` \| (\d{3}|–) \| (\d+) \| .+ \|$", re.MULTILINE)
_, ENTRY = new_token("ops", Role.OPERATE)


def test_the_table_of_the_docs_has_every_code_with_its_numbers() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8").partition("### Codes")[2].partition("\n## ")[0]
    assert [(code, status, int(exits)) for code, status, exits in ROW.findall(page)] == [
        (str(code), str(code.status or "–"), code.exit_code) for code in Code
    ]


def test_the_commands_document_every_exit_code_of_a_code() -> None:
    page = (ROOT / "docs" / "control.md").read_text(encoding="utf-8")
    documented = {int(one) for one in re.findall(r"^\| (\d) \| ", page, re.MULTILINE)}
    assert {code.exit_code for code in Code} <= documented


class Keys:
    """Idempotency keys whose first call fails in this way."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    async def begin(self, *_: str) -> None:
        if self.error:
            raise self.error

    async def drop(self, *_: str) -> None: ...


async def ask(
    raises: Exception | None = None,
    *,
    method: str = "GET",
    path: str = "/api/v1/it",
    slow: bool = False,
    busy: bool = False,
    times: int = 1,
    rules: dict[str, Any] | None = None,
    **request: Any,
) -> httpx.Response:
    """The answer of a small application behind the middleware."""
    app = FastAPI()
    problems.install(app)

    async def handler(number: int = 0) -> int:
        if raises:
            raise raises
        if slow:
            await asyncio.Event().wait()
        return number

    app.get("/api/v1/it")(handler)
    app.post("/api/v1/it")(handler)
    given: dict[str, Any] = {
        "access": Access(()),
        "calls": Keys(),
        "rates": Rates(0),
        "body_limit": 100,
        "timeout": 30.0,
    }
    made = ApiRules(**given | (rules or {}))
    if busy:
        made.under_way |= {
            asyncio.create_task(asyncio.sleep(60, http_request.HttpReply.of(200, "", b""))) for _ in range(MOST_AT_ONCE)
        }
    base = "http://127.0.0.1"
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(Middleware(app, made)), base_url=base) as client:
            for _ in range(times - 1):
                await client.request(method, path)
            return await client.request(method, path, **request)
    finally:
        for task in made.under_way:
            task.cancel()


async def _never() -> Any:
    await asyncio.Event().wait()
    yield b""


KEY = {"Idempotency-Key": "k"}
OVER_HTTP: dict[Code, Callable[[], Awaitable[httpx.Response]]] = {
    Code.NOT_FOUND: lambda: ask(path="/api/v1/nothing"),
    Code.NOT_IN_REVIEW: lambda: ask(NotFoundError("x", Code.NOT_IN_REVIEW)),
    Code.REFUSED: lambda: ask(ControlError("x")),
    Code.INVALID_REQUEST: lambda: ask(path="/api/v1/it?number=x"),
    Code.UNAUTHORIZED: lambda: ask(rules={"access": Access((ENTRY,))}),
    Code.FORBIDDEN: lambda: ask(headers={"Origin": "http://elsewhere"}),
    Code.METHOD_NOT_ALLOWED: lambda: ask(method="PUT"),
    Code.BODY_TIMEOUT: lambda: ask(method="POST", content=_never()),
    Code.REQUEST_IN_PROGRESS: lambda: ask(method="POST", headers=KEY, rules={"calls": Keys(ConflictError("x"))}),
    Code.KEY_REUSED: lambda: ask(method="POST", headers=KEY, rules={"calls": Keys(ReusedKeyError("x"))}),
    Code.BODY_TOO_LARGE: lambda: ask(method="POST", json="x" * 101),
    Code.UNSUPPORTED_MEDIA_TYPE: lambda: ask(method="POST", content=b"x"),
    Code.WRONG_HOST: lambda: ask(headers={"Host": "elsewhere"}),
    Code.RATE_LIMITED: lambda: ask(times=3, rules={"rates": Rates(1, clock=lambda: 0.0)}),
    Code.OVERLOADED: lambda: ask(busy=True),
    Code.TIMEOUT: lambda: ask(slow=True, rules={"timeout": 0.05}),
    Code.TOPOLOGY_INVALID: lambda: ask(TopologyError("x")),
    Code.MISSING_ON_BROKER: lambda: ask(MissingOnBrokerError("x")),
    Code.BROKER_UNREACHABLE: lambda: ask(BrokerUnreachableError("x")),
    Code.BROKER_REFUSED: lambda: ask(BrokerError("x")),
    Code.AUDIT_UNAVAILABLE: lambda: ask(AuditUnavailableError("x")),
    Code.AUDIT_REFUSED: lambda: ask(AuditError("x")),
    Code.INTERNAL: lambda: ask(RuntimeError("x")),
}
OF_COMMANDS: dict[Code, type[TarryError]] = {
    Code.NOT_DRAINABLE: NotDrainableError,
    Code.API_UNREACHABLE: ApiError,
    Code.OUTPUT_FAILED: OutputError,
    Code.EMBEDDED_FAILED: EmbeddedError,
    Code.SOURCE_FAILED: SourceError,
}
ON_RETRIES = ("test_retry_now.py", "test_cancel_reconciler.py")
"""These provoke the others, with a broker and Postgres."""


def test_every_code_is_provoked_somewhere() -> None:
    folder = ROOT / "tests" / "integration" / "operations"
    text = "".join((folder / name).read_text(encoding="utf-8") for name in ON_RETRIES)
    elsewhere = {Code[name] for name in re.findall(r"Code\.([A-Z_]+)", text)}
    assert set(OVER_HTTP) | set(OF_COMMANDS) | elsewhere == set(Code)


@pytest.mark.parametrize("code", OVER_HTTP)
def test_a_problem_has_the_code_and_its_status(code: Code, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_request, "BODY_WITHIN", 0.05)

    async def run() -> httpx.Response:
        return await OVER_HTTP[code]()

    answer = asyncio.run(run())
    assert (answer.json()["code"], answer.status_code, answer.json()["status"]) == (code, code.status, code.status)


@pytest.mark.parametrize("code", Code)
def test_a_command_prints_the_code_as_json_and_exits_with_its_number(code: Code) -> None:
    app = typer.Typer(cls=Commands)

    @app.command("fail")
    def fail(*, as_json: AsJson = False) -> None:
        error = OF_COMMANDS.get(code, TarryError)("what happened")
        error.code = code
        raise error

    app.command("other")(lambda: None)
    failed = CliRunner().invoke(app, ["fail", "--json"])
    assert (failed.exit_code, json.loads(failed.stdout)) == (code.exit_code, {"error": "what happened", "code": code})
    plain = CliRunner().invoke(app, ["fail"])
    assert (plain.exit_code, plain.stdout, plain.stderr) == (code.exit_code, "", "error: what happened\n")


def test_a_command_of_tarry_reports_its_error_as_json() -> None:
    nobody = ("--api", "http://127.0.0.1:1", "--json")
    for words, code in ((("status",), Code.API_UNREACHABLE), (("pause", "q", "--for", "soon"), Code.INVALID_REQUEST)):
        failed = CliRunner().invoke(tarry, [*words, *nobody])
        assert (json.loads(failed.stdout)["code"], failed.exit_code) == (code, code.exit_code)
