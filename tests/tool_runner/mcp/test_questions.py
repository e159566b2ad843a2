"""What a server requests from the user of a call: forms within limits, and calls that wait for the answer."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from tests.tool_runner.conftest import Runner, only
from tests.tool_runner.mcp.clients import mcp_client
from tests.tool_runner.mcp.test_stdio_servers import PROGRAM, SERVER

from banksman.contracts.approvals import InputOutcome, InputResolved
from banksman.contracts.mcp import McpTarget
from banksman.contracts.wire import JsonObject
from banksman.tool_runner.mcp.servers import McpClient
from banksman.tool_runner.sandbox.base import Stop
from banksman.tool_runner.settings import RunnerLimits
from banksman.tool_runner.tools.toolbox import ToolOutcome, ToolRun

pytestmark = only("bwrap", "containers of the backend docker have no channel")
FORM: JsonObject = {"type": "object", "properties": {"name": {"type": "string"}}}
TOKEN = PROGRAM.env["TOKEN"]


@pytest.fixture
async def servers(runner: Runner, limits: RunnerLimits) -> AsyncGenerator[McpClient]:
    (runner.workspace.directory / "server.py").write_bytes(SERVER.read_bytes())
    async with mcp_client(limits, runner.sandbox) as client:
        yield client


def answered(outcome: InputOutcome, value: Any = None) -> InputResolved:
    return InputResolved(request_id="r", value=value, by="ann", outcome=outcome)


async def ask(
    servers: McpClient, runner: Runner, params: JsonObject, answer: InputResolved | None = None
) -> ToolOutcome:
    tools = (await servers.list_tools(PROGRAM, runner.workspace)).usable
    tool = next(tool for tool in tools if tool.name == "ask")
    target = McpTarget(transport=PROGRAM, tool=tool.name, digest=tool.digest)
    run = ToolRun(runner.workspace, 20, Stop(), call_id="call", answer=answer)
    return await servers.call(target, {"text": json.dumps(params)}, run)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (answered("provided", {"name": "Ada"}), {"action": "accept", "content": {"name": "Ada"}}),
        (answered("declined"), {"action": "decline"}),
        (answered("expired"), {"action": "cancel"}),
    ],
)
async def test_a_call_waits_for_its_user_and_continues_with_the_answer(
    servers: McpClient, runner: Runner, answer: InputResolved, expected: JsonObject
) -> None:
    """The request contains no secret of the server."""
    params: JsonObject = {"message": f"Who? {TOKEN}", "requestedSchema": FORM}
    waiting = await ask(servers, runner, params)
    ended = await ask(servers, runner, params, answer)

    assert waiting.asks is not None
    assert (waiting.asks.message, waiting.asks.schema_) == ("Who? «hidden»", FORM)
    assert ended.asks is None
    assert json.loads(str(ended.value["result"])) == expected


@pytest.mark.parametrize(
    "params",
    [
        {"mode": "url", "message": "Open it", "url": "https://example.org", "elicitationId": "1"},
        {"message": "Who?", "requestedSchema": {**FORM, "properties": {"a": {"type": "object"}}}},
        {"message": "Who?", "requestedSchema": {**FORM, "x": "y" * 20_000}},
        {"message": "y" * 3_000, "requestedSchema": FORM},
    ],
    ids=["address", "nested", "large", "long"],
)
async def test_requests_that_are_no_bounded_form_are_refused(
    servers: McpClient, runner: Runner, params: JsonObject
) -> None:
    """The server gets an error at once, and its call goes on."""
    outcome = await ask(servers, runner, params)

    assert outcome.asks is None
    assert "code" in json.loads(str(outcome.value["result"]))


async def test_an_answer_to_a_session_that_has_ended_has_an_unknown_outcome(
    servers: McpClient, runner: Runner
) -> None:
    await ask(servers, runner, {"message": "Who?", "requestedSchema": FORM})
    await servers.sessions.end(runner.workspace.tenant, runner.workspace.conversation)
    lost = await ask(servers, runner, {}, answered("declined"))
    servers.cancel(runner.workspace.tenant, "call")
    unknown = await ask(servers, runner, {}, answered("declined"))

    assert (lost.error_kind, unknown.error_kind) == ("unknown_outcome", "unknown_outcome")


async def test_a_cancelled_call_waits_no_longer(servers: McpClient, runner: Runner) -> None:
    params: JsonObject = {"message": "Who?", "requestedSchema": FORM}
    await ask(servers, runner, params)
    servers.cancel(runner.workspace.tenant, "call")
    unknown = await ask(servers, runner, params, answered("declined"))

    assert unknown.error_kind == "unknown_outcome"
