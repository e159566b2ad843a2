"""What clients receive of processes: their list, also of those that were lost, and parts of their output."""

from __future__ import annotations

import asyncio

from tests.tool_runner.conftest import Runner

from banksman.contracts.processes import MAX_OUTPUT_BYTES, KnownProcess
from banksman.contracts.runner_requests import FileReply, ProcessList, ProcessRead, ProcessRequest
from banksman.contracts.workspaces import WorkspacePlacement
from banksman.tool_runner.processes.process import Process
from banksman.tool_runner.processes.processes import LastingProcesses, ProcessRequests
from banksman.tool_runner.sandbox.base import Stop
from banksman.tool_runner.tools.toolbox import ToolRun


async def reply_after(runner: Runner, script: str, request: ProcessRequest) -> tuple[str, FileReply]:
    """Return the id of a process and the reply to a request once it has ended."""
    processes = LastingProcesses(runner.sandbox, runner.limits)
    process = Process("the command", script)
    await processes.start(ToolRun(runner.workspace, 20, Stop(), run_id="c1-r1"), process)
    await process.ended.wait()
    key = (runner.workspace.tenant, runner.workspace.conversation)
    if isinstance(request, ProcessRead):
        request = request.model_copy(update={"process_id": process.id})
    return process.id, await ProcessRequests(processes).reply(key, request)


async def test_a_process_that_was_lost_with_its_runner_is_listed_with_the_reason(runner: Runner) -> None:
    place = WorkspacePlacement(processes=(KnownProcess(id="p9", command="make serve"),))
    process, reply = await reply_after(runner, "exit 3", ProcessList(place=place))
    lost, ended = reply.processes
    assert (lost.id, lost.command, lost.status, lost.started_at) == ("p9", "make serve", "ended", None)
    assert "restarted" in (lost.reason or "")
    assert (ended.id, ended.run_id, ended.exit_code, ended.reason) == (process, "c1-r1", 3, None)


async def test_the_last_part_of_a_long_output_is_bounded_and_says_what_is_missing(runner: Runner) -> None:
    script = "head -c 300000 /dev/zero | tr '\\0' x; echo end"
    _, reply = await reply_after(runner, script, ProcessRead(process_id=""))
    assert reply.output is not None
    assert len(reply.output.output) == MAX_OUTPUT_BYTES and reply.output.output.endswith("xend\n")
    total = 300_004
    assert (reply.output.start, reply.output.next) == (total - MAX_OUTPUT_BYTES, total)
    assert (reply.output.more, reply.output.process.output_bytes) == (False, total)


async def test_a_part_never_ends_within_a_character_that_is_still_written(runner: Runner) -> None:
    processes = LastingProcesses(runner.sandbox, runner.limits)
    process = Process("the command", "printf 'a\\303'; exec sleep 600")
    await processes.start(ToolRun(runner.workspace, 20, Stop()), process)
    requests, key = ProcessRequests(processes), (runner.workspace.tenant, runner.workspace.conversation)
    request = ProcessRead(process_id=process.id, after=0)
    async with asyncio.timeout(60):
        while process.output.total_bytes < 2:
            process.output.arrived.clear()
            await process.output.arrived.wait()
    running = (await requests.reply(key, request)).output
    await processes.stop(process)
    ended = (await requests.reply(key, request)).output
    assert running is not None and ended is not None
    assert (running.output, running.next, running.more) == ("a", 1, True)
    assert (ended.output, ended.next, ended.more) == ("a\ufffd", 2, False)
