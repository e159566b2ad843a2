"""Turns in another process, while their run changes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from banksman.bus.connection import Bus
from banksman.bus.names import WORKFLOW_DEFINITIONS
from banksman.bus.storage.kv import Bucket
from banksman.contracts.registry import StartWorkflow, WorkflowDefinition
from banksman.contracts.work import CancelRun
from banksman.contracts.workflows import TURN_S, Progress, ReportProgress, WorkflowProgress
from banksman.runs.handlers import on_cancel
from banksman.runtime.service import ServiceProcess
from banksman.sdk import WorkflowContext, WorkflowServer, workflow
from tests.support.fixtures import settings_of
from tests.support.nats import Broker
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S
from tests.workflows.playing import events_of, outcome, starting, store, until
from tests.workflows.test_create_project import agent_ports


def cancel_of(start: StartWorkflow) -> CancelRun:
    return CancelRun(
        tenant=start.tenant, conversation_id=start.conversation_id, run_id=start.run_id, by="ada"
    )


async def progress_of(bus: Bus, start: StartWorkflow) -> list[int]:
    events = await events_of(bus, start.tenant, start.conversation_id)
    return [event.data.step for event in events if isinstance(event.data, WorkflowProgress)]


async def test_a_cancel_ends_a_run_without_waiting_for_the_turn_of_its_function(
    service: ServiceProcess, server: Broker, link: Bus, tenant: str
) -> None:
    """A turn may take 30 seconds; a user does not wait for its end."""
    in_turn = asyncio.Event()

    @workflow()
    async def ponder(context: WorkflowContext) -> str:
        """Compute for a long time."""
        in_turn.set()
        await asyncio.Event().wait()
        return "never"

    async with WorkflowServer("ponderers", [ponder], nats=settings_of(server)):
        start = starting(tenant, {}, workflow="ponder")
        await store(link, start)
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await in_turn.wait()
        began = time.monotonic()
        await on_cancel(agent_ports(link), cancel_of(start))
        finished = await outcome(link, start)
        took_s = time.monotonic() - began

    assert finished.status == "cancelled"
    assert took_s < TURN_S / 3, took_s


async def test_a_cancel_ends_the_function_in_its_process_and_its_later_steps_are_refused(
    service: ServiceProcess, server: Broker, link: Bus, tenant: str
) -> None:
    """Two processes serve the workflow, and the broker does not know which of them has the turn (R22)."""
    in_turn, ended = asyncio.Event(), asyncio.Event()

    @workflow()
    async def deploy(context: WorkflowContext) -> str:
        """Compute for a long time, and request a step when that is cancelled."""
        try:
            in_turn.set()
            await asyncio.Event().wait()
        finally:
            try:
                await context.tool("write_file", {"path": "a", "content": "x"}, step="late")
            finally:
                ended.set()
        return "never"

    servers = [WorkflowServer("deployers", [deploy], nats=settings_of(server)) for _ in range(2)]
    async with servers[0], servers[1]:
        start = starting(tenant, {}, workflow="deploy")
        await store(link, start)
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await in_turn.wait()
        await on_cancel(agent_ports(link), cancel_of(start))

        # Before the turn itself times out.
        async with asyncio.timeout(TURN_S / 2):
            await ended.wait()
        finished = await outcome(link, start)

    assert (finished.status, finished.tool_calls) == ("cancelled", ())


async def test_progress_is_stored_during_a_turn_and_once(
    service: ServiceProcess, server: Broker, link: Bus, tenant: str
) -> None:
    """A client that connects during a long turn reads it; a flood of reports is not stored (R21)."""
    end = asyncio.Event()

    @workflow()
    async def count(context: WorkflowContext) -> str:
        """Report each of a thousand items."""
        context.progress(1, 1001, "The first.")
        await end.wait()
        for number in range(2, 1002):
            context.progress(number, 1001, "The rest.")
        return "Counted."

    async with WorkflowServer("counters", [count], nats=settings_of(server)):
        start = starting(tenant, {}, workflow="count")
        await store(link, start)

        async def is_stored() -> bool:
            return await progress_of(link, start) == [1]

        await until(is_stored)
        end.set()
        assert (await outcome(link, start)).content == "Counted."

    reported = await progress_of(link, start)
    assert (reported[0], reported[-1], len(reported)) == (1, 1001, len(set(reported)))


async def test_progress_of_another_server_or_of_an_ended_run_is_refused(
    service: ServiceProcess, server: Broker, link: Bus, tenant: str
) -> None:
    """`workflow.progress` changes only open runs of the server that sends it."""
    in_turn, end = asyncio.Event(), asyncio.Event()

    @workflow()
    async def audit(context: WorkflowContext) -> str:
        """Wait."""
        in_turn.set()
        await end.wait()
        return "done"

    async with WorkflowServer("auditors", [audit], nats=settings_of(server)):
        start = starting(tenant, {}, workflow="audit")
        await store(link, start)
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await in_turn.wait()
        replies = [
            await reported(link, start, server="others", step=1),
            await reported(link, start, server="auditors", step=1),
            await reported(link, start, server="auditors", step=1),
        ]
        end.set()
        await outcome(link, start)
        replies.append(await reported(link, start, server="auditors", step=3))

    assert [reply.get("code", reply.get("stored")) for reply in replies] == [
        "not_found",
        True,
        False,
        "not_found",
    ]
    assert await progress_of(link, start) == [1]


async def reported(bus: Bus, start: StartWorkflow, *, server: str, step: int) -> dict[str, Any]:
    """Report progress as the process of a server; return the reply."""
    report = ReportProgress(
        server=server,
        tenant=start.tenant,
        conversation_id=start.conversation_id,
        run_id=start.run_id,
        progress=Progress(step=step, total=3),
    )
    reply = await bus.request("workflow.progress", report.model_dump_json().encode(), WAIT_TIMEOUT_S)
    return json.loads(reply)


DYING = """
import asyncio, os, sys
from pathlib import Path
from banksman.bus.connection import NatsSettings
from banksman.sdk import WorkflowContext, WorkflowServer, workflow

@workflow()
async def die(context: WorkflowContext) -> str:
    "Never return in the first process, and return at once in the next one."
    mark = Path(sys.argv[2])
    if mark.exists():
        return "survived"
    mark.with_name("written").write_text(str(os.getpid()))
    mark.with_name("written").rename(mark)
    await asyncio.Event().wait()
    return "never"

WorkflowServer("mortals", [die], nats=NatsSettings(url=sys.argv[1])).run()
"""


@pytest.mark.parametrize("others", [0, 1], ids=["alone", "beside another"])
async def test_a_turn_of_a_killed_process_is_repeated_long_before_its_time_limit(
    service: ServiceProcess, server: Broker, link: Bus, tenant: str, tmp_path: Path, others: int
) -> None:
    command = (sys.executable, "-c", DYING, server.url, str(tmp_path / "mark"))
    processes = [await asyncio.create_subprocess_exec(*command) for _ in range(1 + others)]
    try:
        start = starting(tenant, {}, workflow="die")

        async def is_served() -> bool:
            return await Bucket(link, WORKFLOW_DEFINITIONS, WorkflowDefinition).get("die") is not None

        await until(is_served)
        await store(link, start)
        await eventually((tmp_path / "mark").exists)
        pid = int((tmp_path / "mark").read_text())
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        if not others:
            processes.append(await asyncio.create_subprocess_exec(*command))
        finished = await outcome(link, start)
        took_s = time.monotonic() - began
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()

    assert finished.content == "survived"
    assert took_s < TURN_S / 3, took_s
