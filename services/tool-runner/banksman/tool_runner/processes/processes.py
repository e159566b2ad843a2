"""The processes of this runner that outlive a call, and the sandboxes of conversations in which they run."""

from __future__ import annotations

import asyncio
import codecs
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import assert_never

from banksman.contracts.processes import MAX_OUTPUT_BYTES, KnownProcess, ProcessInfo, ProcessOutput
from banksman.contracts.runner_requests import (
    FileReply,
    ProcessList,
    ProcessRead,
    ProcessRequest,
    ProcessStop,
)
from banksman.contracts.tools import NetworkPolicy
from banksman.quotas.places import Shares
from banksman.runtime.waits import set_within
from banksman.tool_runner.egress.proxy import CommandProxy
from banksman.tool_runner.processes.process import Process
from banksman.tool_runner.sandbox.base import (
    KilledReason,
    OnListener,
    Sandbox,
    SandboxCommand,
    SandboxUnavailable,
)
from banksman.tool_runner.settings import ProcessSettings, RunnerLimits
from banksman.tool_runner.tools.toolbox import ToolRun, WorkspaceLocked, watching_growth

logger = logging.getLogger(__name__)

MAX_ENDED, MAX_CONVERSATIONS = 8, 128
"""Ended processes of a conversation, and conversations without a running one, that are listed. The oldest are
forgotten."""
END_WAIT_S = 5.0
LOST = "its tool-runner was restarted, or the workspace moved to another one"
Key = tuple[str, str]
"""Tenant and conversation of a workspace."""


class ProcessRefused(Exception):
    """A process is not started; the text is for the model."""


async def _unrecorded(_key: Key, _running: tuple[KnownProcess, ...]) -> None:
    return


@dataclass
class _Conversation:
    processes: dict[str, Process] = field(default_factory=dict[str, Process])
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the sandbox starts."""
    stack: AsyncExitStack | None = None
    """Ends the sandbox; None without one."""
    sandbox: Sandbox | None = None
    network: NetworkPolicy | None = None
    """The policy with which the sandbox starts."""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    """Those of the policy, for every process."""
    users: int = 0
    """Number of processes and calls in the sandbox."""
    lost: dict[str, str] = field(default_factory=dict[str, str])
    """Processes of another runner or of an earlier start, with the call that reports their loss."""

    def running(self) -> list[Process]:
        return [process for process in self.processes.values() if process.running]


@dataclass
class LastingProcesses:
    """A conversation has a sandbox while one of its processes runs. All processes end with this object."""

    backend: Sandbox
    limits: RunnerLimits
    proxy: CommandProxy | None = None
    """If None, no command may connect, even if its policy allows it."""
    settings: ProcessSettings = field(default_factory=ProcessSettings)
    record: Callable[[Key, tuple[KnownProcess, ...]], Awaitable[None]] = _unrecorded
    """Stores the processes that the model takes for running, in the platform's record of the workspace."""
    idle_s: Callable[[Key], float] = lambda _: 0.0
    """Returns the seconds since the last call of a conversation."""

    def __post_init__(self) -> None:
        self._conversations: dict[Key, _Conversation] = {}
        self._shares = Shares(self.settings.total)
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, run: ToolRun, process: Process, stdin: int | None = None) -> None:
        """Start a process. Its end is recorded in `process`, also if it could not be started.

        Raises:
            ProcessRefused: it is not started.
            BanksmanError: the platform has not recorded it.
        """
        key = _key(run)
        conversation = self._conversations.pop(key, None) or _Conversation()
        self._conversations[key] = conversation
        self._check(conversation, run)
        process.run_id = run.run_id or None
        conversation.processes[process.id] = process
        self._shares.take(key[0])
        try:
            # Recorded before it starts: if this runner ends, the model is notified of the loss.
            await self.record(key, self._known(key))
        except BaseException:
            self._shares.give_back(key[0])
            del conversation.processes[process.id]
            raise
        task = asyncio.create_task(self._run(run, process, stdin), name=f"process {process.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @asynccontextmanager
    async def sandbox_for(self, run: ToolRun) -> AsyncGenerator[Sandbox]:
        """Yield the sandbox of an ordinary call: that of its conversation, if it has one with this policy.

        With another policy, the call could reach hosts that it was not approved for. A sandbox that still
        starts for a process counts.
        """
        conversation = self._conversations.get(_key(run))
        if conversation is None or not conversation.users or conversation.network != run.network:
            yield self.backend
            return
        async with self._in_sandbox(conversation, run) as sandbox:
            yield sandbox

    @asynccontextmanager
    async def connected(self, run: ToolRun) -> AsyncGenerator[tuple[OnListener | None, Mapping[str, str]]]:
        """Serve the proxy of commands; yield where its socket goes, and the variables of the commands."""
        grant = None if self.proxy is None else self.proxy.grant(run.network)
        if self.proxy is None or grant is None:
            yield None, {}
            return
        async with self.proxy.session(grant.rules, "/".join(_key(run))) as session:
            yield session.listen, grant.variables

    def list(self, key: Key) -> list[Process]:
        conversation = self._conversations.get(key)
        return [] if conversation is None else list(conversation.processes.values())

    def runs(self, key: Key) -> bool:
        return any(process.running for process in self.list(key))

    def get(self, key: Key, process_id: str) -> Process | None:
        return next((process for process in self.list(key) if process.id == process_id), None)

    async def stop(self, process: Process, reason: KilledReason = "stopped") -> None:
        """End a process with all its children, and wait until it has ended."""
        process.stop.request(reason)
        await set_within(process.ended, END_WAIT_S)

    async def end(self, key: Key, reason: KilledReason) -> None:
        """End all processes of a conversation, and forget them."""
        running = [process for process in self.list(key) if process.running]
        for process in running:
            process.stop.request(reason)
        for process in running:
            await self.stop(process, reason)
        self._conversations.pop(key, None)

    async def end_all(self, reason: KilledReason) -> None:
        """End all processes of this runner within `END_WAIT_S` seconds."""
        for key in self._conversations:
            for process in self.list(key):
                process.stop.request(reason)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=END_WAIT_S)

    def notice(self, key: Key, known: tuple[KnownProcess, ...], call_id: str) -> str | None:
        """Return a sentence for each process that the model takes for running and that has ended.

        Each is returned once, unless `notify_again` withdraws those of its call.
        """
        return "\n".join(self._ends(key, known, call_id)) or None

    def notify_again(self, key: Key, call_id: str) -> None:
        """Withdraw the notices of a call, whose result has not reached the model."""
        conversation = self._conversations.get(key)
        if conversation is None:
            return
        conversation.lost = {name: call for name, call in conversation.lost.items() if call != call_id}
        for process in conversation.processes.values():
            if process.told_in == call_id:
                process.told_in = None

    def _ends(self, key: Key, known: tuple[KnownProcess, ...], call_id: str) -> Iterator[str]:
        for one in known:
            process = self.get(key, one.id)
            if process is None:
                conversation = self._conversations.setdefault(key, _Conversation())
                if one.id not in conversation.lost:
                    conversation.lost[one.id] = call_id
                    yield f"Process {one.id} ({one.command}) has ended: {LOST}."
            elif not process.running and process.told_in is None:
                process.told_in = call_id
                reason = process.reason(self.settings.idle_s)
                ended = f"with exit code {process.exit_code}" if reason is None else f": {reason}"
                yield f"Process {one.id} ({one.command}) has ended {ended}.".replace(" :", ":")

    async def settle(self, key: Key, known: tuple[KnownProcess, ...]) -> None:
        """Record that the model was notified of the ends of processes."""
        untold = tuple(one for one in known if self._is_untold(key, one.id))
        if len(untold) < len(known):
            started = tuple(one for one in self._known(key) if one not in untold)
            await self.record(key, (*untold, *started))

    def _is_untold(self, key: Key, process_id: str) -> bool:
        if process := self.get(key, process_id):
            return process.told_in is None
        conversation = self._conversations.get(key)
        return conversation is None or process_id not in conversation.lost

    def _known(self, key: Key) -> tuple[KnownProcess, ...]:
        return tuple(process.known for process in self.list(key) if process.running)

    def _check(self, conversation: _Conversation, run: ToolRun) -> None:
        running = conversation.running()
        if len(running) >= self.settings.per_conversation:
            ids = ", ".join(process.id for process in running)
            raise ProcessRefused(f"{len(running)} processes already run ({ids}); stop one of them first")
        if running and conversation.network != run.network:
            raise ProcessRefused("the running processes have another network policy; stop them first")
        if not self._shares.allows(run.workspace.tenant):
            raise ProcessRefused("too many processes run on this tool-runner; stop some, or try again later")

    async def _run(self, run: ToolRun, process: Process, stdin: int | None) -> None:
        key = _key(run)
        conversation = self._conversations[key]
        try:
            async with self._in_sandbox(conversation, run) as sandbox:
                directory, duration_s = run.workspace.directory, self.settings.max_s
                command = SandboxCommand(
                    process.script,
                    directory,
                    duration_s,
                    toolchain=process.toolchain,
                    variables=conversation.variables,
                    lasts=True,
                    stdin=stdin,
                )
                on_output = process.on_output or process.output.add
                outcome = await sandbox.run(command, on_output=on_output, stop=process.stop)
            outcome.output.close()
            process.end(exit_code=outcome.exit_code, killed=outcome.killed_reason)
        except (SandboxUnavailable, WorkspaceLocked) as error:
            process.end(killed=process.stop.reason, problem=str(error))
        except asyncio.CancelledError:
            process.end(killed=process.stop.reason or "cancelled")
            raise
        except Exception:
            process.end(killed=process.stop.reason, problem="the tool-runner failed")
            logger.exception("process %s of %s failed", process.id, key)
        finally:
            self._shares.give_back(key[0])
            self._forget_oldest(conversation)

    @asynccontextmanager
    async def _in_sandbox(self, conversation: _Conversation, run: ToolRun) -> AsyncGenerator[Sandbox]:
        if not conversation.users:
            conversation.network = run.network
        conversation.users += 1
        try:
            async with conversation.lock:
                sandbox = conversation.sandbox or await self._open(conversation, run)
            yield sandbox
        finally:
            conversation.users -= 1
            if not conversation.users and conversation.stack is not None:
                stack, conversation.stack, conversation.sandbox = conversation.stack, None, None
                # In a task of its own, so that a cancelled caller leaves no sandbox behind.
                await asyncio.shield(stack.aclose())

    async def _open(self, conversation: _Conversation, run: ToolRun) -> Sandbox:
        async with AsyncExitStack() as opened:
            on_listener, conversation.variables = await opened.enter_async_context(self.connected(run))
            quota = watching_growth(run.workspace, _Watched(conversation), self.limits.sandbox)
            await opened.enter_async_context(quota)
            sandbox = await opened.enter_async_context(self.backend.shared(on_listener))
            conversation.sandbox = sandbox
            self._end_when_idle(conversation, _key(run))
            conversation.stack = opened.pop_all()
            return sandbox

    def _end_when_idle(self, conversation: _Conversation, key: Key) -> None:
        left_s = self.settings.idle_s - self.idle_s(key)
        if left_s <= 0:
            _Watched(conversation).request("idle")
        elif conversation.sandbox is not None:
            asyncio.get_running_loop().call_later(left_s, self._end_when_idle, conversation, key)

    def _forget_oldest(self, conversation: _Conversation) -> None:
        ended = [process.id for process in conversation.processes.values() if not process.running]
        for process_id in ended[:-MAX_ENDED]:
            del conversation.processes[process_id]
        idle = [key for key, one in self._conversations.items() if not one.users and not one.running()]
        for key in idle[:-MAX_CONVERSATIONS]:
            del self._conversations[key]


@dataclass(frozen=True, slots=True)
class _Watched:
    """Ends all processes of a conversation."""

    conversation: _Conversation

    def request(self, reason: KilledReason) -> None:
        for process in self.conversation.running():
            process.stop.request(reason)


def _key(run: ToolRun) -> Key:
    return run.workspace.tenant, run.workspace.conversation


@dataclass(frozen=True, slots=True)
class ProcessRequests:
    processes: LastingProcesses

    async def reply(self, key: Key, request: ProcessRequest) -> FileReply:
        """Reply to a request; neither `output` nor `processes` for a process that is unknown."""
        match request:
            case ProcessList():
                return FileReply(processes=tuple(self._list(key, request.place.processes)))
            case ProcessRead():
                process = self.processes.get(key, request.process_id)
                return FileReply(output=process and self._output(process, request.after))
            case ProcessStop():
                return FileReply(processes=await self._stopped(key, request.process_id))
            case _:
                assert_never(request)

    def _list(self, key: Key, known: tuple[KnownProcess, ...]) -> Iterator[ProcessInfo]:
        """Yield the processes, first those that the model takes for running and that this runner lost."""
        here = [self._info(process) for process in self.processes.list(key)]
        for one in known:
            if all(one.id != process.id for process in here):
                yield ProcessInfo(**dict(one), status="ended", reason=LOST)
        yield from here

    async def _stopped(self, key: Key, process_id: str) -> tuple[ProcessInfo, ...]:
        process = self.processes.get(key, process_id)
        if process is None:
            return ()
        await self.processes.stop(process, "user")
        return (self._info(process),)

    def _output(self, process: Process, after: int | None) -> ProcessOutput:
        wanted = process.output.total_bytes - MAX_OUTPUT_BYTES if after is None else after
        kept, start = process.output.read(wanted)
        part = kept[:MAX_OUTPUT_BYTES]
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        info = self._info(process)
        # The rest of a character at the end of the part may still be written.
        whole = info.status == "ended" and len(part) == len(kept)
        text = decoder.decode(part, final=whole)
        end = start + len(part) - len(decoder.getstate()[0])
        return ProcessOutput(process=info, output=text, start=start, next=end, more=end < info.output_bytes)

    def _info(self, process: Process) -> ProcessInfo:
        return process.info(self.processes.settings.idle_s)
