"""The tool box: definitions, argument checks, turns, and outcomes for every end."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta

import pytest
from tests.tool_runner.conftest import Runner

from banksman.contracts.calls import CallFinished, CallRequest, CallStarted
from banksman.contracts.tools import ToolCall, ToolDefinition, ToolResult
from banksman.contracts.wire import JsonObject
from banksman.quotas.places import Shares
from banksman.runs.runners.calls import RunnerCalls, RunnerSlots
from banksman.runs.schema_checks.checker import check_schema
from banksman.tool_runner.sandbox.base import Stop
from banksman.tool_runner.tools.toolbox import ToolBox, ToolOutcome, ToolRun


def test_the_tools_are_described_for_a_model(runner: Runner) -> None:
    """R62, R63."""
    facts = {
        tool.name: (tool.requires_approval, tool.idempotent, tool.category, tool.timeout_s)
        for tool in runner.box.definitions
    }
    assert facts == {
        "bash": (True, False, "workspace", 600),
        "read_file": (False, True, "workspace", 30),
        "edit_file": (True, False, "workspace", 30),
        "write_file": (True, False, "workspace", 30),
        "web_fetch": (False, False, "web", 30),
        "web_search": (False, True, "web", 30),
        "search_code": (False, True, "workspace", 30),
        "process_output": (False, True, "workspace", 90),
        "process_stop": (False, True, "workspace", 30),
        "process_list": (False, True, "workspace", 30),
    }
    for tool in runner.box.definitions:
        check_schema(tool.input_schema)
        properties = tool.input_schema["properties"]
        assert isinstance(properties, dict)
        assert all(isinstance(each, dict) and each["description"] for each in properties.values())


@pytest.mark.parametrize(
    ("tool", "arguments", "named"),
    [
        ("bash", {}, "command"),
        ("bash", {"command": 3}, "command"),
        ("bash", {"command": ""}, "command"),
        ("bash", {"command": "true", "timeout_s": 0}, "timeout_s"),
        ("bash", {"command": "true", "timeout_s": 601}, "timeout_s"),
        ("bash", {"command": "true", "timeout_s": "9"}, "timeout_s"),
        ("bash", {"command": "true", "cwd": "/"}, "cwd"),
        ("bash", {"command": "a\0b"}, "command"),
        ("bash", {"command": "echo \ud800"}, "command"),
        ("bash", {"command": "x" * 200_000}, "command"),
        ("read_file", {"path": None}, "path"),
        ("read_file", {"path": "a", "offset": -1}, "offset"),
        ("read_file", {"path": "a", "offset": 1.5}, "offset"),
        ("read_file", {"path": "a", "limit": 0}, "limit"),
        ("edit_file", {"path": "a", "edits": []}, "edits"),
        ("edit_file", {"path": "a", "edits": [{"old_text": "", "new_text": "x"}]}, "old_text"),
        ("write_file", {"path": "a"}, "content"),
        ("write_file", {"path": "a", "content": {"b": 1}}, "content"),
        ("write_file", {"path": "a", "content": "\ud800"}, "content"),
        ("web_fetch", {"url": ["http://x"]}, "url"),
        ("web_fetch", {"url": ""}, "url"),
    ],
)
async def test_bad_arguments_are_refused_with_the_parameter_and_the_reason(
    runner: Runner, tool: str, arguments: JsonObject, named: str
) -> None:
    """R53."""
    outcome = await runner.box.run(tool, runner.workspace, arguments)
    assert (outcome.is_error, outcome.error_kind) == (True, "invalid_arguments")
    assert named in str(outcome.value["error"])
    assert len(str(outcome.value["error"])) < 1000


async def test_unknown_tool_is_an_error_with_its_name(runner: Runner) -> None:
    """R50."""
    outcome = await runner.box.run("delete_everything", runner.workspace, {})
    assert outcome.error_kind == "unknown_tool"
    assert "delete_everything" in str(outcome.value["error"])


async def test_a_tool_that_raises_is_a_result_and_its_details_stay_in_the_log(
    runner: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    """R46, R54."""

    class Broken:
        definition = ToolDefinition(name="broken", description="")

        async def run(self, arguments: JsonObject, run: ToolRun) -> ToolOutcome:
            raise ConnectionError("to 10.0.0.7 with password hunter2")

    with caplog.at_level(logging.ERROR):
        outcome = await ToolBox((Broken(),)).run("broken", runner.workspace, {})
    assert (outcome.error_kind, outcome.value["error"]) == ("tool_error", "broken failed: ConnectionError")
    assert "hunter2" in caplog.text


async def test_call_starts_only_when_it_has_its_turn(runner: Runner) -> None:
    order: list[str] = []

    async def call(name: str) -> None:
        async with runner.turn("bash"):
            order.append(f"start {name}")
            await runner.box.run("bash", runner.workspace, {"command": "true"})
            order.append(f"end {name}")

    async with asyncio.TaskGroup() as group:
        group.create_task(call("a"))
        group.create_task(call("b"))
    assert order == ["start a", "end a", "start b", "end b"]


def runner_calls(slots: RunnerSlots) -> RunnerCalls:
    """The bookkeeping of a runner that may start every call."""
    return RunnerCalls(
        runner="r1",
        runner_epoch=1,
        slots=slots,
        capacity=Shares(8),
        now=lambda: datetime.now(UTC),
        may_start=lambda: True,
        may_repeat=lambda _: False,
    )


def bash_request(command: str) -> CallRequest:
    call = ToolCall(id="k1", name="bash", arguments={"command": command})
    return CallRequest(
        tenant="acme",
        conversation_id="c1",
        run_id="c1-r",
        attempt="k1-1",
        call=call,
        digest=call.digest,
        runner_epoch=1,
        deadline=datetime.now(UTC) + timedelta(seconds=60),
        left_s=60,
    )


async def test_call_whose_start_is_not_recorded_is_not_executed(runner: Runner) -> None:
    class VoidStart:
        async def start(self, tenant: str, started: CallStarted) -> bool:
            raise PermissionError("the start is void")

        async def finish(self, tenant: str, finished: CallFinished) -> bool:
            raise AssertionError("a call without a start has no result")

    async def execute(_: CallRequest) -> ToolResult:
        await runner.bash("touch effect")
        return ToolResult(tool_call_id="t1", content={})

    with pytest.raises(PermissionError):
        await runner_calls(VoidStart()).perform(bash_request("touch effect"), execute)
    assert not (runner.workspace.directory / "effect").exists()


async def test_call_stopped_before_its_turn_never_starts(runner: Runner) -> None:
    stop = Stop()
    stop.request("cancelled")
    outcome = await runner.bash("touch effect", stop=stop)
    assert outcome.error_kind == "cancelled"
    assert not (runner.workspace.directory / "effect").exists()


async def test_progress_is_text_with_a_limit(runner: Runner) -> None:
    seen: list[tuple[str, str]] = []
    await runner.box.run(
        "bash",
        runner.workspace,
        {"command": "printf '\\xe2\\x82'; sleep 0.05; printf '\\xac'; echo e >&2; yes x | head -c 500000"},
        on_output=lambda stream, text: seen.append((stream, text)),
    )
    out = "".join(text for stream, text in seen if stream == "stdout")
    assert out.startswith("€x\n")
    assert ("stderr", "e\n") in seen
    assert len(out) <= 100_000


async def test_a_sandbox_that_cannot_start_is_unavailable(runner: Runner) -> None:
    runner.workspace.directory.rename(runner.workspace.directory.with_name("elsewhere"))
    outcome = await runner.bash("true")
    assert outcome.error_kind == "unavailable"
    assert "sandbox" in str(outcome.value["error"])
