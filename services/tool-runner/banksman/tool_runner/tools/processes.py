"""The tools for processes that the tool `bash` has started with `background` or `session`."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from banksman.contracts.wire import JsonObject, JsonValue
from banksman.contracts.workspace_tools import PROCESS_LIST, PROCESS_OUTPUT, PROCESS_STOP
from banksman.tool_runner.processes.process import Process
from banksman.tool_runner.processes.processes import Key, LastingProcesses
from banksman.tool_runner.sandbox.base import run_until
from banksman.tool_runner.tools.terminal import last_state
from banksman.tool_runner.tools.toolbox import ToolOutcome, ToolRun, failure, page


@dataclass(frozen=True, slots=True)
class ProcessListTool:
    processes: LastingProcesses
    definition = PROCESS_LIST

    async def run(self, arguments: JsonObject, run: ToolRun) -> ToolOutcome:
        found = self.processes.list(key_of(run))
        return ToolOutcome({"success": True, "processes": [state_of(one, self.processes) for one in found]})


@dataclass(frozen=True, slots=True)
class ProcessOutputTool:
    processes: LastingProcesses
    max_output_chars: int
    definition = PROCESS_OUTPUT

    async def run(self, arguments: JsonObject, run: ToolRun) -> ToolOutcome:
        process = _named(self.processes, arguments, run)
        if isinstance(process, ToolOutcome):
            return process
        offset, wait_s, until = arguments.get("offset"), arguments.get("wait_s"), arguments.get("until")
        if isinstance(wait_s, int | float):
            text = until.encode() if isinstance(until, str) else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(wait_s, run.timeout_s)):
                    await run_until(_output_or_end(process, text), run.stop.wait())
        start = int(offset) if isinstance(offset, int | float) else None
        return ToolOutcome(value=shown(process, self.processes, self.max_output_chars, start, run.call_id))


@dataclass(frozen=True, slots=True)
class ProcessStopTool:
    processes: LastingProcesses
    max_output_chars: int
    definition = PROCESS_STOP

    async def run(self, arguments: JsonObject, run: ToolRun) -> ToolOutcome:
        process = _named(self.processes, arguments, run)
        if isinstance(process, ToolOutcome):
            return process
        await self.processes.stop(process)
        if process.running:
            return failure("tool_error", "the process was killed, but its end is not confirmed yet")
        return ToolOutcome(value=shown(process, self.processes, self.max_output_chars, None, run.call_id))


def key_of(run: ToolRun) -> Key:
    return run.workspace.tenant, run.workspace.conversation


def shown(
    process: Process, processes: LastingProcesses, max_chars: int, start: int | None, call_id: str
) -> JsonObject:
    """Return the state of a process for the result of a call, with its output from `start` on.

    Without `start`, it is what the model has not received yet: the last part, if not everything fits.
    """
    wanted = process.shown_to if start is None else start
    data, first = process.output.read(wanted)
    if start is None and len(data) > max_chars:
        first += len(data) - max_chars
        data = data[-max_chars:]
    part = page(data, max_chars)
    process.shown_to = first + part.consumed_bytes
    process.told_in = None if process.running else call_id
    value: JsonObject = {
        "success": True,
        **state_of(process, processes),
        "output": last_state(part.text),
        "next_offset": process.shown_to,
    }
    if first > wanted:
        value["omitted_bytes"] = first - wanted
    if process.shown_to < process.output.total_bytes:
        value["more_bytes"] = process.output.total_bytes - process.shown_to
    return value


def state_of(process: Process, processes: LastingProcesses) -> dict[str, JsonValue]:
    info = process.info(processes.settings.idle_s)
    state = info.model_dump(mode="json", exclude_none=True, exclude={"run_id"})
    return {"process": state.pop("id"), **state}


async def _output_or_end(process: Process, text: bytes | None) -> None:
    """Wait for the end of a process, or for new output: with this text, or any if `text` is None."""
    while process.running:
        process.output.arrived.clear()
        new, _ = process.output.read(process.shown_to)
        if new if text is None else text and text in new:
            return
        await process.output.arrived.wait()


def _named(processes: LastingProcesses, arguments: JsonObject, run: ToolRun) -> Process | ToolOutcome:
    """Return the process that the arguments name, or the failure of the call."""
    key = key_of(run)
    if process := processes.get(key, str(arguments["process"])):
        return process
    known = ", ".join(process.id for process in processes.list(key)) or "none"
    return failure("tool_error", f"there is no such process; the processes of this conversation: {known}")
