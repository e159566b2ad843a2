from __future__ import annotations

import asyncio
import codecs
import contextlib
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from banksman.contracts.errors import BanksmanError
from banksman.contracts.tools import ErrorKind
from banksman.contracts.wire import JsonObject, has_lone_surrogate
from banksman.contracts.workspace_tools import BASH
from banksman.tool_runner.processes.process import Process
from banksman.tool_runner.processes.processes import LastingProcesses, ProcessRefused
from banksman.tool_runner.processes.sessions import Language, SessionCall, Sessions
from banksman.tool_runner.sandbox.base import (
    NO_TOOLCHAIN,
    KilledReason,
    OnOutput,
    SandboxCommand,
    SandboxOutcome,
    SandboxUnavailable,
    Stream,
    run_until,
)
from banksman.tool_runner.settings import RunnerLimits, Toolchain
from banksman.tool_runner.tools import toolbox
from banksman.tool_runner.tools.processes import shown
from banksman.tool_runner.tools.terminal import last_state
from banksman.tool_runner.workspaces.workspace import Workspace

_MAY_LEAVE = re.compile(r"(?<![&<>|\\])&(?![&>])|\b(?:nohup|setsid|disown|daemon|coproc|start)|--?d\b")
"""A job of the shell, or a word by which programs leave their shell."""
MAX_NAMES = 10
_TRAP = r"""
{{ set +efux; }} 2>/dev/null
__names=()
for __process in /proc/[0-9]*; do
    __pid=${{__process#/proc/}}
    [[ $__pid == 1 || $__pid == $$ ]] && continue
    read -r __name <$__process/comm || continue
    read -r _ _ __state _ <$__process/stat && [[ $__state == Z ]] && continue
    __names+=("$__name ($__pid)")
done 2>/dev/null
if ((${{#__names[@]}})); then
    __left=$(IFS=,; echo "${{__names[*]:0:{most}}}")
    echo "[Ended with this call, because it left them running: $__left. Use background: true.]" >&2
fi
"""


def reporting(script: str) -> str:
    """Return the script with a report, on standard error, of the processes that it left running.

    They end with the call, and are seen only from within the sandbox, before the command's own shell ends:
    from its EXIT trap, which a trap of the command replaces.

    The shell of the script is the first one, so that it survives when it kills all other processes.
    """
    if not _MAY_LEAVE.search(script):
        return script
    return f"trap {shlex.quote(_TRAP.format(most=MAX_NAMES))} EXIT; {script}"


MAX_PROGRESS_CHARS = 100_000
"""Maximum characters of one call that are published while it runs; the result has its own limit."""
START_S = 0.3
"""Seconds for which the start of a process in the background waits for its end."""
SHORT_BYTES = 8 * 1024
"""Maximum bytes of an output that the event loop handles. A thread, which handles longer ones, costs as much
time as starting the sandbox."""


@dataclass(frozen=True, slots=True)
class BashTool:
    limits: RunnerLimits
    processes: LastingProcesses
    sessions: Sessions
    toolchains: Mapping[str, Toolchain] = field(default_factory=dict[str, Toolchain])
    definition = BASH

    async def run(self, arguments: JsonObject, run: toolbox.ToolRun) -> toolbox.ToolOutcome:
        """Run `command`; a non-zero exit code is a result, not an error of the tool."""
        script = str(arguments["command"])
        if refusal := self._refusal(script) or _contradiction(arguments):
            return toolbox.failure("invalid_arguments", refusal)
        toolchain = self.toolchains.get(run.toolchain) if run.toolchain else NO_TOOLCHAIN
        if toolchain is None:
            return toolbox.failure("unavailable", self._no_toolchain(run.toolchain))
        timeout_s = min(_timeout(arguments, self.limits), run.timeout_s)
        # Before the workspace is measured, so that the command does not count as the one that wrote it.
        if not run.workspace.has_home:
            await asyncio.to_thread(toolbox.prepare_home, run)
        try:
            if arguments.get("background") is True:
                return await self._start(script, run, toolchain)
            if isinstance(session := arguments.get("session"), str):
                language: Language = "python" if arguments.get("language") == "python" else "bash"
                called = SessionCall(session, language, script, toolchain)
                return await self._run_in_session(called, replace(run, timeout_s=timeout_s))
            return await self._run(script, run, timeout_s, toolchain)
        except ProcessRefused as refused:
            return toolbox.failure("tool_error", f"the command was not run: {refused}")
        except toolbox.WorkspaceLocked as locked:
            return toolbox.failure("tool_error", f"the command was not run: {locked}")
        except SandboxUnavailable as error:
            return toolbox.failure("unavailable", f"the sandbox could not be started: {error}")
        except BanksmanError as error:
            return toolbox.failure("unavailable", f"the command was not run: {error}")

    async def _run(
        self, script: str, run: toolbox.ToolRun, timeout_s: float, toolchain: Toolchain
    ) -> toolbox.ToolOutcome:
        async with (
            toolbox.within_quota(run, self.limits.sandbox),
            self.processes.connected(run) as (on_listener, variables),
            self.processes.sandbox_for(run) as sandbox,
        ):
            command = SandboxCommand(
                reporting(script),
                run.workspace.directory,
                timeout_s,
                on_listener,
                toolchain=toolchain,
                variables=variables,
            )
            outcome = await sandbox.run(command, on_output=_on_output(run), stop=run.stop)
        return await self._ended(outcome, run, timeout_s)

    async def _start(self, script: str, run: toolbox.ToolRun, toolchain: Toolchain) -> toolbox.ToolOutcome:
        """Start a process, and wait for a moment: one that fails at once is reported with its output."""
        process = Process(script, script, toolchain)
        await self.processes.start(run, process)
        stopped = await run_until(_ended_within(process, START_S), run.stop.wait()) is None
        if stopped:
            await self.processes.stop(process, run.stop.reason or "cancelled")
            kind, error = self._killed(run.stop.reason or "cancelled", START_S, run.workspace)
            return toolbox.failure(kind, error)
        if process.problem is not None:
            raise SandboxUnavailable(process.problem)
        value = shown(process, self.processes, self.limits.max_output_chars, None, run.call_id)
        if process.running:
            value["note"] = (
                "It runs in the background, also after this run. process_output returns its output, "
                "process_stop ends it. It ends when no call is made for "
                f"{self.processes.settings.idle_s:g} seconds."
            )
        return toolbox.ToolOutcome(value=value, exit_code=process.exit_code)

    async def _run_in_session(self, called: SessionCall, run: toolbox.ToolRun) -> toolbox.ToolOutcome:
        async with toolbox.within_quota(run, self.limits.sandbox):
            outcome = await self.sessions.run(run, called, _on_output(run))
        ended = await self._ended(outcome, run, run.timeout_s)
        if not self.sessions.is_running(run, called.name):
            ended.value["note"] = "The session has ended; its variables and its directory are lost."
        return ended

    async def _ended(
        self, outcome: SandboxOutcome, run: toolbox.ToolRun, timeout_s: float
    ) -> toolbox.ToolOutcome:
        # A thread only for outputs that may be long: a truncated output is stored as a file of the workspace.
        if outcome.output.total_bytes <= min(SHORT_BYTES, self.limits.max_output_chars):
            ended = self._result(outcome, run.workspace, timeout_s)
        else:
            ended = await asyncio.to_thread(self._result, outcome, run.workspace, timeout_s)
        if self.processes.proxy is None and _wants_network(run):
            ended.value["note"] = (
                "The operator of this runner does not allow commands to connect to any host."
            )
        return ended

    def _no_toolchain(self, name: str | None) -> str:
        known = ", ".join(self.toolchains) or "none"
        return f"the toolchain {name!r} of this assistant is unknown to its runner, which has: {known}"

    def _refusal(self, script: str) -> str | None:
        limit = self.limits.sandbox.max_command_bytes
        if "\0" in script:
            return "command: expected text without NUL"
        if has_lone_surrogate(script):
            return "command: expected valid Unicode"
        if (size := len(script.encode())) > limit:
            return f"command: expected at most {limit} bytes (got {size}); write a script with write_file"
        return None

    def _result(self, outcome: SandboxOutcome, workspace: Workspace, timeout_s: float) -> toolbox.ToolOutcome:
        shown = outcome.output.shown()
        whole = outcome.output.whole() if shown.truncated else None
        outcome.output.close()
        value: JsonObject = {
            "success": outcome.exit_code == 0,
            "exit_code": outcome.exit_code,
            "stdout": last_state(shown.stdout),
            "stderr": last_state(shown.stderr),
            "truncated": shown.truncated,
            "total_bytes": outcome.output.total_bytes,
            "timed_out": outcome.killed_reason == "timeout",
            "killed_reason": outcome.killed_reason,
        }
        if whole is not None and (path := toolbox.store_output(workspace, whole)):
            value |= {"full_output_path": path, "more": _more(outcome, whole, path)}
        error_kind = None
        if outcome.killed_reason is not None:
            error_kind, error = self._killed(outcome.killed_reason, timeout_s, workspace)
            value |= {"error": error, "error_kind": error_kind}
        return toolbox.ToolOutcome(
            value=value,
            is_error=error_kind is not None,
            error_kind=error_kind,
            exit_code=outcome.exit_code,
            truncated=shown.truncated,
            output=whole,
        )

    def _killed(self, reason: KilledReason, timeout_s: float, workspace: Workspace) -> tuple[ErrorKind, str]:
        limits, killed = self.limits.sandbox, "the command was killed"
        match reason:
            case "timeout":
                return "timeout", f"{killed} after its time-out of {timeout_s:g} s"
            case "cancelled":
                return "cancelled", "the command was cancelled; it may have had effects before"
            case "fenced":
                return "unknown_outcome", toolbox.FENCED
            case "output_limit":
                return "output_limit", f"{killed}: it wrote more than {limits.max_output_bytes} bytes"
            case "memory_limit":
                return "tool_error", f"{killed}: it used more than {limits.memory_bytes} bytes of memory"
            case "workspace_limit":
                return "tool_error", f"{killed}: {toolbox.growth_problem(workspace)}"
            case "stopped" | "user" | "idle":
                return "tool_error", f"{killed}: its session was ended"
            case _:
                assert_never(reason)


def _contradiction(arguments: JsonObject) -> str | None:
    background, session = arguments.get("background") is True, "session" in arguments
    if background and session:
        return "background: a session runs between calls anyway; expected only one of background and session"
    if background and "timeout_s" in arguments:
        return "timeout_s: a command in the background has none; end it with process_stop"
    if "language" in arguments and not session:
        return "language: expected a session"
    return None


async def _ended_within(process: Process, within_s: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await process.ended.wait()
    return True


def _on_output(run: toolbox.ToolRun) -> OnOutput | None:
    return _decoded(run.on_progress) if run.on_progress else None


def _wants_network(run: toolbox.ToolRun) -> bool:
    return run.network is not None and (run.network.commands or bool(run.network.registries))


def _more(outcome: SandboxOutcome, whole: bytes, path: str) -> str:
    stored = len(whole) if len(whole) < outcome.output.total_bytes else None
    bound = "" if stored is None else f" Only the first {stored} bytes are stored."
    return f"The middle is omitted.{bound} {toolbox.continuation(path)}"


def _timeout(arguments: JsonObject, limits: RunnerLimits) -> float:
    requested = arguments.get("timeout_s")
    timeout_s = float(requested) if isinstance(requested, int | float) else limits.sandbox.timeout_s
    return min(timeout_s, limits.sandbox.max_timeout_s)


def _decoded(on_progress: toolbox.OnProgress) -> OnOutput:
    """Report bytes as text without split characters, and at most `MAX_PROGRESS_CHARS` characters."""
    decoders: dict[Stream, codecs.IncrementalDecoder] = {
        "stdout": codecs.getincrementaldecoder("utf-8")("replace"),
        "stderr": codecs.getincrementaldecoder("utf-8")("replace"),
    }
    room = MAX_PROGRESS_CHARS

    def report(stream: Stream, chunk: bytes) -> None:
        nonlocal room
        if room > 0 and (text := decoders[stream].decode(chunk)[:room]):
            room -= len(text)
            on_progress(stream, text)

    return report
