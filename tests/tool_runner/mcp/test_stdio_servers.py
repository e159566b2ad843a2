"""Servers as programs in the sandbox, well-behaved and hostile ones."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from tests.support.polling import eventually
from tests.tool_runner.conftest import Runner, only
from tests.tool_runner.mcp.clients import mcp_client

from banksman.contracts.mcp import McpTarget, ServedTool, StdioServer
from banksman.contracts.wire import JsonObject
from banksman.tool_runner.mcp.servers import ListingFailed, McpClient
from banksman.tool_runner.sandbox.base import Stop
from banksman.tool_runner.settings import RunnerLimits, SandboxLimits
from banksman.tool_runner.tools.toolbox import ToolOutcome, ToolRun

SERVER = Path(__file__).with_name("stdio_server.py")
TOKEN = "a-token-of-a-tenant"
PROGRAM = StdioServer(command=("/usr/bin/python3", "/workspace/server.py"), env={"TOKEN": TOKEN})

pytestmark = only("bwrap", "containers of the backend docker have no channel")


@pytest.fixture
async def servers(runner: Runner, limits: RunnerLimits) -> AsyncGenerator[McpClient]:
    (runner.workspace.directory / "server.py").write_bytes(SERVER.read_bytes())
    async with mcp_client(limits, runner.sandbox) as client:
        yield client


def behave(runner: Runner, behaviour: str) -> None:
    (runner.workspace.directory / "behaviour").write_text(behaviour)


async def found(servers: McpClient, runner: Runner, name: str) -> ServedTool:
    tools = (await servers.list_tools(PROGRAM, runner.workspace)).usable
    return next(tool for tool in tools if tool.name == name)


async def call(
    servers: McpClient,
    runner: Runner,
    tool: ServedTool,
    text: str = "hello",
    *,
    timeout_s: float = 20,
    stop: Stop | None = None,
) -> ToolOutcome:
    target = McpTarget(transport=PROGRAM, tool=tool.name, digest=tool.digest)
    arguments: JsonObject = {"text": text}
    return await servers.call(target, arguments, ToolRun(runner.workspace, timeout_s, stop or Stop()))


def calls(runner: Runner) -> list[str]:
    file = runner.workspace.directory / "calls"
    return file.read_text().split() if file.exists() else []


async def test_a_program_runs_in_the_workspace_without_network_and_its_secrets_are_hidden(
    servers: McpClient, runner: Runner
) -> None:
    tools = {tool.name: tool for tool in (await servers.list_tools(PROGRAM, runner.workspace)).usable}
    echoed = await call(servers, runner, tools["echo"])
    wrote = await call(servers, runner, tools["write"], "a file")
    failed = await call(servers, runner, tools["fail"])
    looked = await call(servers, runner, tools["look"])

    assert echoed.value == {"success": True, "truncated": False, "result": "hello «hidden»"}
    assert (wrote.value["result"], (runner.workspace.directory / "written").read_text()) == (
        "written",
        "a file",
    )
    assert (failed.is_error, failed.error_kind) == (True, "tool_error")
    assert failed.value["error"] == "failed with «hidden»"
    seen = json.loads(str(looked.value["result"]))
    assert seen["environ"]["TOKEN"] == "«hidden»"
    assert not any("http_proxy" in name.lower() for name in seen["environ"])
    assert seen["channel"] is False
    assert not any(TOKEN in command or "hidden" in command for command in seen["commands"])
    assert [tool.name for tool in tools.values() if tool.read_only] == ["echo"]


async def test_a_changed_description_is_noticed_before_the_call(servers: McpClient, runner: Runner) -> None:
    tool = await found(servers, runner, "write")
    titled = await found(servers, runner, "titled")
    behave(runner, "changed")
    refused = await call(servers, runner, tool)
    behave(runner, "changed title")
    retitled = await call(servers, runner, titled)
    behave(runner, "many")
    removed = await call(servers, runner, tool)

    # Without a description, models read the title.
    assert titled.description == "The tool titled."
    assert (refused.error_kind, retitled.error_kind, removed.error_kind) == ("denied", "denied", "denied")
    assert "administrator must approve" in str(refused.value["error"])
    assert calls(runner) == []


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("no start", "the program needs a licence"),
        ("long line", "more than 1048576 bytes"),
        ("pings", "more than 10000 messages"),
    ],
)
async def test_a_program_that_breaks_the_protocol_is_reported(
    servers: McpClient, runner: Runner, behaviour: str, reason: str
) -> None:
    tool = await found(servers, runner, "echo")
    behave(runner, behaviour)
    outcome = await call(servers, runner, tool)
    with pytest.raises(ListingFailed, match=reason):
        await servers.list_tools(PROGRAM, runner.workspace)
    assert outcome.error_kind == "unavailable"
    assert reason in str(outcome.value["error"])


@pytest.mark.parametrize(("behaviour", "shown"), [("cut secret", "xxx"), ("cut error", "yyy")])
async def test_a_secret_is_hidden_where_an_error_is_cut(
    servers: McpClient, runner: Runner, behaviour: str, shown: str
) -> None:
    behave(runner, behaviour)
    with pytest.raises(ListingFailed) as failed:
        await servers.list_tools(PROGRAM, runner.workspace)
    assert shown in str(failed.value)
    assert TOKEN[-4:] not in str(failed.value)
    assert TOKEN[:4] not in str(failed.value)


async def test_descriptions_and_schemas_of_tools_hide_secrets_and_such_a_tool_is_callable(
    servers: McpClient, runner: Runner
) -> None:
    """A tool whose name contains a secret is left out."""
    behave(runner, "described")
    (described,) = (await servers.list_tools(PROGRAM, runner.workspace)).usable
    assert described.description == "«hidden»"
    assert described.input_schema["properties"] == {"text": {"default": ["«hidden»"]}}
    assert (await call(servers, runner, described)).error_kind is None


async def test_messages_of_a_program_are_not_logged(
    servers: McpClient, runner: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    """The SDK logs invalid notifications with their content, which may have the tenant's secrets."""
    behave(runner, "invalid notification")
    with caplog.at_level("DEBUG"):
        await servers.list_tools(PROGRAM, runner.workspace)
    assert TOKEN not in caplog.text


async def test_a_program_that_ends_or_floods_in_a_call_leaves_an_unknown_outcome(
    servers: McpClient, runner: Runner
) -> None:
    ended = await call(servers, runner, await found(servers, runner, "exit"))
    flooded = await call(servers, runner, await found(servers, runner, "flood"))

    assert (ended.error_kind, flooded.error_kind) == ("unknown_outcome", "unknown_outcome")
    assert "cannot go on, «hidden»" in str(ended.value["error"])
    assert "more than 4194304 bytes" in str(flooded.value["error"])
    assert calls(runner) == ["exit", "flood"]


async def test_a_call_ends_at_its_time_out_and_when_it_is_cancelled(
    servers: McpClient, runner: Runner
) -> None:
    tool = await found(servers, runner, "sleep")
    slow = await call(servers, runner, tool, timeout_s=2)
    stop = Stop()
    running = asyncio.create_task(call(servers, runner, tool, stop=stop))
    await eventually(lambda: len(calls(runner)) == 2)
    stop.request("cancelled")
    cancelled = await running
    behave(runner, "silent")
    silent = await call(servers, runner, tool, timeout_s=1)

    assert (slow.error_kind, cancelled.error_kind) == ("unknown_outcome", "cancelled")
    assert silent.error_kind == "timeout", "it was not sent"
    assert "may have had effects" in str(cancelled.value["error"])


async def test_lists_of_tools_are_bounded(servers: McpClient, runner: Runner) -> None:
    behave(runner, "many")
    many = (await servers.list_tools(PROGRAM, runner.workspace)).usable
    behave(runner, "endless pages")
    endless = (await servers.list_tools(PROGRAM, runner.workspace)).usable
    assert (len(many), len(endless)) == (100, 1)


async def test_a_long_result_is_stored_and_continued_with_read_file(
    servers: McpClient, runner: Runner
) -> None:
    outcome = await call(servers, runner, await found(servers, runner, "echo"), "x" * 50_000)
    assert (len(str(outcome.value["result"])), outcome.truncated) == (10_000, True)
    assert "read_file" in str(outcome.value["more"])
    assert outcome.output is not None
    assert len(outcome.output) > 50_000


async def test_a_program_keeps_its_state_between_the_calls_of_a_conversation(
    servers: McpClient, runner: Runner
) -> None:
    """Another conversation has a program of its own, and a program that ended is started again."""
    count, leave = await found(servers, runner, "count"), await found(servers, runner, "exit")
    counted = [(await call(servers, runner, count)).value["result"] for _ in range(3)]
    await call(servers, runner, leave)
    again = await call(servers, runner, count)
    assert counted == ["1", "2", "3"]
    assert again.value["result"] == "1"


async def test_a_program_that_heeds_a_cancel_goes_on_and_one_that_does_not_is_killed(
    servers: McpClient, runner: Runner
) -> None:
    count, wait, sleep = [await found(servers, runner, name) for name in ("count", "wait", "sleep")]
    before = await call(servers, runner, count)
    waited = await call(servers, runner, wait, timeout_s=1)
    after = await call(servers, runner, count)
    slept = await call(servers, runner, sleep, timeout_s=1)
    new = await call(servers, runner, count)
    assert (waited.error_kind, slept.error_kind) == ("unknown_outcome", "unknown_outcome")
    assert [one.value["result"] for one in (before, after, new)] == ["1", "2", "1"]
    assert (runner.workspace.directory / "cancelled").read_text() == "wait"


async def test_progress_of_a_program_is_shown_as_output_without_secrets(
    servers: McpClient, runner: Runner
) -> None:
    shown: list[tuple[str, str]] = []
    tool = await found(servers, runner, "progress")
    target = McpTarget(transport=PROGRAM, tool=tool.name, digest=tool.digest)
    run = ToolRun(runner.workspace, 20, Stop(), lambda stream, text: shown.append((stream, text)))
    outcome = await servers.call(target, {"text": "x"}, run)
    assert outcome.value["success"] is True
    assert shown == [("stderr", "1/3 step 1 «hidden»\n"), ("stderr", "2/3 step 2 «hidden»\n")]


class TestBounds:
    @pytest.fixture
    def limits(self) -> RunnerLimits:
        return RunnerLimits(sandbox=SandboxLimits(max_sessions=4, session_idle_s=60))

    async def test_sessions_are_bounded_and_the_longest_idle_one_of_a_tenant_ends(
        self, servers: McpClient, runner: Runner
    ) -> None:
        """Of four sessions, a tenant has three."""
        count = await found(servers, runner, "count")

        async def counted(name: str) -> str:
            server = StdioServer(command=PROGRAM.command, env={**PROGRAM.env, "NAME": name})
            target = McpTarget(transport=server, tool=count.name, digest=count.digest)
            outcome = await servers.call(target, {"text": "x"}, ToolRun(runner.workspace, 20, Stop()))
            return str(outcome.value["result"])

        assert [await counted(name) for name in "abca"] == ["1", "1", "1", "2"]
        assert [await counted(name) for name in "db"] == ["1", "1"]
        assert await counted("a") == "3"


class TestIdle:
    @pytest.fixture
    def limits(self) -> RunnerLimits:
        return RunnerLimits(sandbox=SandboxLimits(session_idle_s=0.1))

    async def test_an_idle_program_ends(self, servers: McpClient, runner: Runner) -> None:
        count = await found(servers, runner, "count")
        first = await call(servers, runner, count)
        await eventually(lambda: len(servers.sessions) == 0)
        again = await call(servers, runner, count)
        assert (first.value["result"], again.value["result"]) == ("1", "1")
