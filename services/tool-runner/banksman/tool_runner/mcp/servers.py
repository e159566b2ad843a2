"""Calls the tools of servers of the Model Context Protocol. The SDK is imported with the first call."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from banksman.contracts import mcp
from banksman.contracts.ids import digest
from banksman.contracts.runner_requests import GetMcpPrompt
from banksman.contracts.wire import JsonObject
from banksman.runtime.background import first_error
from banksman.runtime.redaction import Redaction
from banksman.tool_runner.egress.client import Egress, rules_of
from banksman.tool_runner.mcp.connection import (
    UNAUTHORIZED_USER,
    ConnectionState,
    Denied,
    ServerFailed,
    import_sdk,
    shown,
)
from banksman.tool_runner.mcp.held_calls import HeldCalls, Questions
from banksman.tool_runner.mcp.open_sessions import MAX_AGE_S, OpenSession, OpenSessions
from banksman.tool_runner.sandbox.base import (
    KilledReason,
    Sandbox,
    SandboxUnavailable,
    Stop,
    cancel,
    run_until,
)
from banksman.tool_runner.settings import RunnerLimits
from banksman.tool_runner.tools.toolbox import (
    FENCED,
    ToolOutcome,
    ToolRun,
    WorkspaceLocked,
    failure,
    growth_problem,
    watching_growth,
    within_quota,
)
from banksman.tool_runner.workspaces.workspace import Workspace

if TYPE_CHECKING:
    from mcp.shared.dispatcher import ProgressFnT

    from banksman.tool_runner.mcp.session import ServedTools, Session, Streams

logger = logging.getLogger(__name__)
T = TypeVar("T")

LIST_S = 25.0
"""The default of `read_s`; the gateway's request times out after 30 seconds."""
_NO_STREAMABLE_HTTP = frozenset({400, 404, 405})
"""Statuses of a server of revision 2024-11-05, whose clients get events with `GET`."""


class ListingFailed(Exception):
    """The tools of a server cannot be listed, or a prompt cannot be read; the text is for users."""

    def __init__(self, text: str, *, needs_sign_in: bool = False) -> None:
        self.needs_sign_in = needs_sign_in
        super().__init__(text)


@dataclass(slots=True)
class McpCall:
    target: mcp.McpTarget
    arguments: JsonObject
    run: ToolRun
    secrets: Redaction
    questions: Questions
    session: OpenSession | None = None
    sent: bool = False
    performing: asyncio.Task[ToolOutcome] | None = None

    @property
    def state(self) -> ConnectionState:
        return ConnectionState() if self.session is None else self.session.state

    @property
    def stop_reason(self) -> KilledReason | None:
        """Why the call was ended, or the program that executed it."""
        return self.run.stop.reason or (self.session and self.session.stop.reason)


@dataclass(frozen=True, slots=True)
class McpClient:
    """Connects to servers. Their sessions stay open between the calls of a conversation."""

    sandbox: Sandbox | None
    """Runs servers that are programs; None if this runner's sandbox does not support them."""
    egress: Egress
    limits: RunnerLimits
    sessions: OpenSessions
    read_s: float = LIST_S
    """Seconds to list the tools of a server or to get a prompt."""
    held: HeldCalls = field(default_factory=HeldCalls)

    async def call(self, target: mcp.McpTarget, arguments: JsonObject, run: ToolRun) -> ToolOutcome:
        """Call a tool once, if its description is still the one that an administrator approved.

        With an answer of its user, continue the call that waits for it.
        """
        call = self.held.take(_key(run))
        if run.answer is not None:
            if call is None:
                return _unknown("the server's session ended before the user's answer arrived")
            call.questions.reply(run.answer)
            call.run = run
        secrets = Redaction(target.secrets)
        questions = Questions(secrets, self.limits.sandbox.session_idle_s)
        call = call or McpCall(target, arguments, run, secrets, questions)
        started_at = time.monotonic()
        try:
            # Only a program, which runs in the workspace, can change it.
            program = not isinstance(target.transport, mcp.HttpServer)
            watched = within_quota(run, self.limits.sandbox) if program else nullcontext()
            async with asyncio.timeout(run.timeout_s), watched:
                outcome = await run_until(self._advance(call), run.stop.wait())
        except TimeoutError:
            outcome = _timed_out(call)
        except Exception as error:
            await _end_if_broken(call.session, first_error(error))
            outcome = await asyncio.to_thread(_failed, call, first_error(error))
        outcome = outcome or _stopped(call)
        outcome = run.finished(outcome, started_at)
        await _settle(call, outcome)
        return outcome

    def cancel(self, tenant: str, call_id: str) -> None:
        """Cancel a call that waits for its user."""
        self.held.end((tenant, call_id))

    async def close(self) -> None:
        await self.held.close()
        await self.sessions.close()

    async def _advance(self, call: McpCall) -> ToolOutcome:
        """Perform a call until it ends or asks its user."""
        task = call.performing = call.performing or asyncio.create_task(self._perform(call))
        came = asyncio.create_task(call.questions.came.wait())
        try:
            await asyncio.wait((task, came), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await cancel(task)
            raise
        finally:
            came.cancel()
        if task.done():
            return task.result()
        if (asked := call.questions.asked) is None:
            # The server has withdrawn its question.
            return await self._advance(call)
        self.held.hold(_key(call.run), call, asked.expires_s)
        return ToolOutcome(value={"success": False, "error": "the server waits for a user"}, asks=asked)

    async def list_tools(
        self, transport: mcp.McpTransport, workspace: Workspace, hidden: tuple[str, ...] = ()
    ) -> ServedTools:
        """Return the tools of a server. No error contains a secret of its transport or a text in `hidden`."""

        async def listed(opened: Session, secrets: Redaction) -> ServedTools:
            from banksman.tool_runner.mcp.session import served_tools

            return await served_tools(opened, secrets)

        return await self._once(transport, workspace, hidden, listed, "list its tools")

    async def prompt(self, request: GetMcpPrompt, workspace: Workspace) -> str:
        """Return the text of a prompt; errors are those of `list_tools`."""

        async def got(opened: Session, secrets: Redaction) -> str:
            from banksman.tool_runner.mcp.prompts import prompt_messages, prompt_text

            contents = await prompt_messages(opened.client, request.name, request.arguments)
            return await asyncio.to_thread(prompt_text, contents, secrets)

        return await self._once(request.transport, workspace, request.hidden, got, "return the prompt")

    async def _once(
        self,
        transport: mcp.McpTransport,
        workspace: Workspace,
        hidden: tuple[str, ...],
        use: Callable[[Session, Redaction], Awaitable[T]],
        what: str,
    ) -> T:
        """Return what `use` reads in a session of its own; raise `ListingFailed` with the reason."""
        state, secrets = ConnectionState(), Redaction((*transport.secrets, *hidden))
        run = ToolRun(workspace, self.read_s, Stop())
        try:
            await import_sdk()
            async with (
                asyncio.timeout(self.read_s),
                self._connected(transport, run, secrets, state) as opened,
            ):
                return await use(opened, secrets)
        except TimeoutError as error:
            raise ListingFailed(f"the server did not {what} within {self.read_s:g} s") from error
        except Exception as error:
            text = await asyncio.to_thread(shown, secrets, state, first_error(error))
            raise ListingFailed(text, needs_sign_in=state.needs_sign_in) from error

    async def _perform(self, call: McpCall) -> ToolOutcome:
        await import_sdk()
        from banksman.tool_runner.mcp import session as protocol

        while True:
            call.session = await self._session(call)
            again = call.session.calls > 0
            async with call.session.used() as opened:
                try:
                    served = await protocol.served_tool(opened, call.target.tool, call.secrets)
                except ServerFailed:
                    call.session.closing.set()
                    if again:
                        # The server ended the session, or the program ended, after an earlier call.
                        continue
                    raise
                _check(served, call.target)
                call.sent = True
                with call.session.answering(call.questions):
                    result = await protocol.call(opened, call.target.tool, call.arguments, _shows(call))
                break
        run, max_chars = call.run, self.limits.max_output_chars
        await run.workspace.meter.before_write()
        return await asyncio.to_thread(protocol.outcome_of, result, call.secrets, run.workspace, max_chars)

    async def _session(self, call: McpCall) -> OpenSession:
        """Return the session of a call, which another one may have opened."""
        target, workspace = call.target, call.run.workspace
        transport = target.transport
        headers = transport.headers if isinstance(transport, mcp.HttpServer) else {}
        # A renewed token continues the session of its account.
        others = {name: value for name, value in transport.values.items() if name.lower() != "authorization"}
        server = transport.with_values(others if headers else transport.values)
        rules = call.run.network and call.run.network.model_dump_json()
        digested = digest(json.dumps([server.model_dump_json(), target.account, rules]).encode())

        def connect(session: OpenSession) -> AbstractAsyncContextManager[Session]:
            kept = ToolRun(workspace, MAX_AGE_S + call.run.timeout_s, session.stop, network=call.run.network)
            return self._connected(transport, kept, call.secrets, session.state)

        session = await self.sessions.get((workspace.tenant, workspace.conversation, digested), connect)
        session.state.headers.update(headers)
        return session

    @contextlib.asynccontextmanager
    async def _connected(
        self, transport: mcp.McpTransport, run: ToolRun, secrets: Redaction, state: ConnectionState
    ) -> AsyncGenerator[Session]:
        from banksman.tool_runner.mcp.session import session

        async with contextlib.AsyncExitStack() as stack:
            try:
                streams = await stack.enter_async_context(self._streams(transport, run, secrets, state))
                opened = await stack.enter_async_context(session(streams, transport, state))
            except Exception as error:
                # The task groups of the SDK wrap what a session raises.
                older_server = state.problem is None and state.status in _NO_STREAMABLE_HTTP
                if not (older_server and isinstance(first_error(error), ServerFailed)):
                    raise
                await stack.aclose()
                older = self._streams(transport, run, secrets, state, events=True)
                opened = await stack.enter_async_context(
                    session(await stack.enter_async_context(older), transport, state)
                )
            yield opened

    @contextlib.asynccontextmanager
    async def _streams(
        self,
        transport: mcp.McpTransport,
        run: ToolRun,
        secrets: Redaction,
        state: ConnectionState,
        *,
        events: bool = False,
    ) -> AsyncGenerator[Streams]:
        from banksman.tool_runner.mcp.transports import opened, started

        if isinstance(transport, mcp.HttpServer):
            async with opened(transport, self.egress, rules_of(run.network), state, events=events) as streams:
                yield streams
            return
        if self.sandbox is None:
            raise ServerFailed("servers that are programs need the sandbox bwrap on this runner")
        async with (
            watching_growth(run.workspace, run.stop, self.limits.sandbox),
            started(transport, self.sandbox, run, secrets, state) as streams,
        ):
            yield streams


def _key(run: ToolRun) -> tuple[str, str]:
    return run.workspace.tenant, run.call_id


def _check(served: mcp.ServedTool | None, target: mcp.McpTarget) -> None:
    if served is None and target.account:
        raise Denied("the server does not offer this tool to the account of this user")
    if served is None:
        raise Denied("the server no longer has this tool")
    if served.digest != target.digest:
        raise Denied(
            "the server has changed the description or the schema of this tool since an administrator "
            "approved it; an administrator must approve the change first"
        )


def _shows(call: McpCall) -> ProgressFnT:
    """Return what shows the progress of a call to users, as its output."""

    async def show(progress: float, total: float | None, message: str | None) -> None:
        share = f"{progress:g}" if total is None else f"{progress:g}/{total:g}"
        if call.run.on_progress is not None:
            call.run.on_progress("stderr", call.secrets.of(f"{share} {message or ''}".strip()) + "\n")

    return show


async def _end_if_broken(session: OpenSession | None, error: BaseException) -> None:
    """End the session of a connection that has closed: only then the reason of a program is known."""
    from mcp.shared.exceptions import MCPError
    from mcp_types import CONNECTION_CLOSED

    closed = isinstance(error, MCPError) and error.error.code == CONNECTION_CLOSED
    if session is not None and closed and not session.users:
        await session.end()


async def _settle(call: McpCall, outcome: ToolOutcome) -> None:
    """Close the session of a call that failed: after a cancel, a program that still responds may go on."""
    session = call.session
    if session is None or session.users:
        return
    if outcome.error_kind not in ("cancelled", "timeout", "unknown_outcome"):
        if session.state.problem is not None:
            session.closing.set()
        return
    stopped = call.run.stop.reason in ("fenced", "workspace_limit") or session.state.problem is not None
    if stopped or session.closing.is_set() or not await session.responds():
        await session.end()


def _timed_out(call: McpCall) -> ToolOutcome:
    text = f"the tool did not end within {call.run.timeout_s:g} s"
    # A server over HTTP may still execute the call. A program was killed, and may have had effects before.
    return _unknown(text) if call.sent else failure("timeout", text)


def _stopped(call: McpCall) -> ToolOutcome:
    match call.stop_reason:
        case "fenced" if call.sent:
            return failure("unknown_outcome", FENCED)
        case "workspace_limit":
            return failure("tool_error", f"the program was killed: {growth_problem(call.run.workspace)}")
        case _:
            effects = "; it may have had effects before" if call.sent else " before it was sent"
            return failure("cancelled", f"the call was cancelled{effects}")


def _failed(call: McpCall, error: BaseException) -> ToolOutcome:
    from mcp.shared.exceptions import MCPError
    from mcp_types import CONNECTION_CLOSED

    if call.stop_reason == "workspace_limit":
        return _stopped(call)
    if isinstance(error, SandboxUnavailable):
        return failure("unavailable", f"the sandbox could not be started: {call.secrets.of(str(error))}")
    refused = isinstance(error, Denied | WorkspaceLocked) or call.state.refused
    broken = call.state.problem is not None
    of_user = bool(call.target.account) and call.state.needs_sign_in and not broken
    text = UNAUTHORIZED_USER if of_user else shown(call.secrets, call.state, error)
    details = {"sign_in": True} if of_user else {}
    if not call.sent:
        return failure("denied" if refused else "unavailable", text, **details)
    if isinstance(error, MCPError) and error.error.code != CONNECTION_CLOSED and not broken:
        return failure("tool_error", text, **details)
    return _unknown(text)


def _unknown(why: str) -> ToolOutcome:
    text = (
        f"The outcome of this call is unknown: {why}. It was sent and may have had effects, wholly or in "
        "part. It was not repeated. Check before doing it again."
    )
    return failure("unknown_outcome", text)
