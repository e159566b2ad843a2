"""Guarantees for workflow functions, and the outcome of functions that misbehave."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from banksman.bus.connection import Bus
from banksman.contracts.calls import CallRequest
from banksman.contracts.registry import WorkflowDefinition
from banksman.contracts.wire import JsonObject
from banksman.contracts.work import CancelRun
from banksman.contracts.workflows import WorkflowProgress
from banksman.runs.handlers import on_cancel
from banksman.sdk.workflows import Workflow, WorkflowContext, WorkflowFailed, WorkflowFunction
from tests.support.deep_values import deep
from tests.support.timeouts import WAIT_TIMEOUT_S
from tests.workflows.playing import Meeting, PlayedRunner, events_of, outcome, serving, starting, store, until
from tests.workflows.test_create_project import agent_ports

FORM: JsonObject = {"type": "object", "properties": {}, "additionalProperties": False}


def probe(function: WorkflowFunction, **more: Any) -> Workflow:
    return Workflow(WorkflowDefinition(name="probe", parameters_schema=FORM, **more), function)


def write(path: str) -> JsonObject:
    return {"path": path, "content": "x"}


async def test_calls_of_one_task_group_run_concurrently(link: Bus, runner: PlayedRunner, tenant: str) -> None:
    both = asyncio.Barrier(2)

    async def meet(phase: str, _request: CallRequest) -> None:
        if phase == "started":
            await both.wait()

    async def function(context: WorkflowContext) -> str:
        async with asyncio.TaskGroup() as group:
            for path in ("a", "b"):
                group.create_task(context.tool("write_file", write(path), step=path))
        return "done"

    runner.meet = meet
    async with serving(link, probe(function)):
        start = starting(tenant, {}, workflow="probe")
        await store(link, start)

        finished = await outcome(link, start)

    assert (finished.status, finished.content) == ("completed", "done")
    assert [call.iteration for call in finished.tool_calls] == [0, 0]
    assert runner.together == 2


async def test_cancel_ends_a_function_that_waits_for_something_else(link: Bus, tenant: str) -> None:
    """The run ends as cancelled whatever the function does; the function may clean up."""
    waiting, cleaned = asyncio.Event(), asyncio.Event()

    async def function(_context: WorkflowContext) -> str:
        try:
            waiting.set()
            await asyncio.Event().wait()
        finally:
            cleaned.set()
        return "never"

    async with serving(link, probe(function)):
        start = starting(tenant, {}, workflow="probe")
        await store(link, start)
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await waiting.wait()
        signal = CancelRun(
            tenant=tenant, conversation_id=start.conversation_id, run_id=start.run_id, by="ada"
        )
        await on_cancel(agent_ports(link), signal)

        assert (await outcome(link, start)).status == "cancelled"
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await cleaned.wait()


async def test_run_times_out_at_its_time_limit(link: Bus, tenant: str) -> None:
    async def function(_context: WorkflowContext) -> str:
        await asyncio.Event().wait()
        return "never"

    async with serving(link, probe(function, timeout_s=0.3)):
        start = starting(tenant, {}, workflow="probe")
        await store(link, start)

        finished = await outcome(link, start)

    assert finished.status == "timed_out"
    assert "0.3 s" in finished.content


async def test_progress_is_published_while_a_step_runs_and_only_once(
    link: Bus, runner: PlayedRunner, tenant: str
) -> None:
    async def function(context: WorkflowContext) -> str:
        context.progress(1, 2, "half of it")
        await context.tool("write_file", write("a"), step="a")
        context.progress(2, 2, "the rest")
        return "all of it"

    meeting = runner.meet = Meeting(at=lambda phase, _request: phase == "started")
    async with serving(link, probe(function)):
        start = starting(tenant, {}, workflow="probe")
        await store(link, start)
        await until(lambda: _has_progress(link, tenant, start.conversation_id))
        meeting.go.set()

        assert (await outcome(link, start)).content == "all of it"
    events = [event.data for event in await events_of(link, tenant, start.conversation_id)]
    assert [event.message for event in events if isinstance(event, WorkflowProgress)] == [
        "half of it",
        "the rest",
    ]


@pytest.mark.parametrize(
    ("call", "kind"),
    [(("fly", {}), "unknown_tool"), (("write_file", {"path": "a"}), "invalid_arguments")],
)
async def test_call_that_cannot_be_executed_gets_a_failure_result(
    link: Bus, runner: PlayedRunner, tenant: str, call: tuple[str, JsonObject], kind: str
) -> None:
    async def function(context: WorkflowContext) -> str:
        result = await context.tool(call[0], call[1], step="try")
        return f"{result.error_kind}: {result.content['error']}"

    async with serving(link, probe(function)):
        start = starting(tenant, {}, workflow="probe")
        await store(link, start)

        finished = await outcome(link, start)

    assert finished.status == "completed"
    assert finished.content.startswith(f"{kind}: ")
    assert not runner.writes


async def test_step_name_used_twice_fails_the_run(link: Bus, runner: PlayedRunner, tenant: str) -> None:
    async def function(context: WorkflowContext) -> str:
        await context.tool("write_file", write("a"), step="write")
        await context.tool("write_file", write("b"), step="write")
        return "never"

    async with serving(link, probe(function)):
        start = starting(tenant, {}, workflow="probe")
        await store(link, start)

        finished = await outcome(link, start)

    assert (finished.status, finished.content) == ("failed", "probe failed: ValueError")
    assert runner.tree(start.conversation_id) == ["a"]


async def test_message_of_an_unforeseen_error_is_not_logged_in_the_conversation(
    link: Bus, tenant: str
) -> None:
    async def function(_context: WorkflowContext) -> str:
        raise RuntimeError("password is hunter2")

    async with serving(link, probe(function)):
        start = starting(tenant, {}, workflow="probe")
        await store(link, start)

        assert (await outcome(link, start)).content == "probe failed: RuntimeError"

    events = await events_of(link, tenant, start.conversation_id)
    assert "hunter2" not in "".join(event.model_dump_json() for event in events)


async def test_workflow_failure_shows_its_message_to_the_user(link: Bus, tenant: str) -> None:
    async def function(_context: WorkflowContext) -> str:
        raise WorkflowFailed("Nothing to do here.")

    async with serving(link, probe(function)):
        start = starting(tenant, {}, workflow="probe")
        await store(link, start)

        assert (await outcome(link, start)).content == "Nothing to do here."


async def _has_progress(bus: Bus, tenant: str, conversation_id: str) -> bool:
    return "workflow.progress" in [event.data.type for event in await events_of(bus, tenant, conversation_id)]


async def _calls(context: WorkflowContext, arguments: JsonObject) -> str:
    await context.tool("write_file", arguments, step="write")
    return "done"


async def _fails(text: str) -> str:
    raise WorkflowFailed(text)


async def _returns(value: Any) -> str:
    return value


UNSTORABLE: dict[str, WorkflowFunction] = {
    "a long text": lambda _: _returns("x" * 300_000),
    "a value of another type": lambda _: _returns(7),
    "a text that is no UTF-8": lambda _: _returns("\ud800"),
    "a long failure": lambda _: _fails("x" * 2_000_000),
    "long arguments": lambda context: _calls(context, {"path": "a", "content": "x" * 2_000_000}),
    "deep arguments": lambda context: _calls(context, deep(150)),
    "arguments that are no UTF-8": lambda context: _calls(context, {"path": "\ud800", "content": ""}),
}


@pytest.mark.parametrize("function", UNSTORABLE.values(), ids=UNSTORABLE)
async def test_result_that_does_not_fit_the_log_ends_the_workflow_run_as_failed(
    link: Bus, runner: PlayedRunner, tenant: str, function: WorkflowFunction
) -> None:
    """P1: otherwise its message would be redelivered forever, and its run never end."""
    async with serving(link, probe(function)):
        start = starting(tenant, {}, workflow="probe")
        await store(link, start)
        finished = await outcome(link, start, timeout_s=60)
    assert finished.status == "failed"
    assert finished.error is not None and finished.error.code == "workflow_error"
    assert len(await events_of(link, tenant, start.conversation_id)) <= 4
