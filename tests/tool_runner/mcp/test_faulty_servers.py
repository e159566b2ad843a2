"""Servers as they are: noise on their standard output, unusual schemas, faulty messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from tests.support.paths import ROOT
from tests.tool_runner.conftest import Runner, only
from tests.tool_runner.mcp.clients import mcp_client

from banksman.contracts.mcp import McpTarget, StdioServer
from banksman.tool_runner.mcp.servers import McpClient
from banksman.tool_runner.mcp.session import ServedTools
from banksman.tool_runner.sandbox.base import Stop
from banksman.tool_runner.settings import RunnerLimits
from banksman.tool_runner.tools.toolbox import ToolOutcome, ToolRun

TOKEN = "a-token-of-a-tenant"
SERVER = ROOT / "tests/tool_runner/mcp/faulty_server.py"

pytestmark = only("bwrap", "containers of the backend docker have no channel")


@pytest.fixture
async def servers(runner: Runner, limits: RunnerLimits) -> AsyncGenerator[McpClient]:
    (runner.workspace.directory / "server.py").write_bytes(SERVER.read_bytes())
    async with mcp_client(limits, runner.sandbox) as client:
        yield client


def program(faults: str) -> StdioServer:
    return StdioServer(
        command=("/usr/bin/python3", "/workspace/server.py"), env={"TOKEN": TOKEN, "FAULTS": faults}
    )


async def listed(servers: McpClient, runner: Runner, faults: str) -> ServedTools:
    return await servers.list_tools(program(faults), runner.workspace)


async def call(servers: McpClient, runner: Runner, faults: str, name: str = "echo") -> ToolOutcome:
    tools = (await listed(servers, runner, faults)).usable
    tool = next(tool for tool in tools if tool.name == name)
    target = McpTarget(transport=program(faults), tool=tool.name, digest=tool.digest)
    return await servers.call(target, {"text": "x"}, ToolRun(runner.workspace, 20, Stop()))


async def test_lines_that_are_no_messages_are_skipped_and_a_few_are_logged_without_secrets(
    servers: McpClient, runner: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    outcome = await call(servers, runner, "noise")
    skipped = [one.getMessage() for one in caplog.records if "not a message" in one.getMessage()]
    assert outcome.value["result"] == "echoed"
    assert any("Server running on stdio" in text for text in skipped)
    assert len(skipped) == 10, "five of each of two sessions"
    assert TOKEN not in caplog.text


async def test_a_tool_with_an_unusual_schema_hides_no_other_and_an_unusable_one_is_named(
    servers: McpClient, runner: Runner
) -> None:
    tools = await listed(servers, runner, "unusual")
    assert [tool.name for tool in tools.usable] == [
        "no-schema",
        "null-schema",
        "empty-schema",
        "true-schema",
        "nullable-schema",
        "output",
        "echo",
    ]
    assert {str(tool.input_schema["type"]) for tool in tools.usable} == {"object"}
    assert not any(tool.read_only for tool in tools.usable)
    assert {tool.name: tool.reason for tool in tools.refused} == {
        "text-schema": 'its inputSchema has the type "string", not an object',
        "list-schema": "its inputSchema is [], not an object",
        "tool 9": "it has no name",
        "tool 10": "it has no name",
        "tool 11": "it is not an object",
    }
    assert (await call(servers, runner, "unusual", "no-schema")).value["success"] is True


async def test_pages_are_followed_without_repeats(servers: McpClient, runner: Runner) -> None:
    pages = await listed(servers, runner, "pages")
    endless = await listed(servers, runner, "same-page")
    assert [tool.name for tool in pages.usable] == ["echo0", "echo", "echo1", "echo2"]
    assert len(endless.usable) == 1


@pytest.mark.parametrize(
    ("faults", "shown"),
    [
        ("nulls", "echoed"),
        ("old", "echoed"),
        ("envelope", "echoed"),
        ("batch", "echoed"),
        ("requests", "echoed"),
        ("exits", "echoed"),
        ("blocks", 'one\ntwo\n{"type": "text"}\nthree'),
        ("no-content", '{"value": [1, 2]}'),
    ],
)
async def test_faults_of_messages_are_corrected(
    servers: McpClient, runner: Runner, faults: str, shown: str
) -> None:
    outcome = await call(servers, runner, faults)
    assert (outcome.error_kind, outcome.value.get("result")) == (None, shown)


async def test_a_response_that_cannot_be_read_fails_the_call_at_once(
    servers: McpClient, runner: Runner
) -> None:
    outcome = await call(servers, runner, "text-result")
    assert (outcome.error_kind, outcome.duration_ms < 15_000) == ("tool_error", True)
    assert 'an invalid response: "done"' in str(outcome.value["error"])
