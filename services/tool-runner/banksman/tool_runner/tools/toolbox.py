"""The tool box, and what all tools share: contexts and outcomes of calls, and the pages of long texts."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from banksman.contracts.approvals import InputResolved
from banksman.contracts.calls import SearchTarget
from banksman.contracts.tools import AskedInput, ErrorKind, NetworkPolicy, PathChange, ToolDefinition
from banksman.contracts.wire import JsonObject
from banksman.runs.schema_checks.checker import argument_problem
from banksman.tool_runner.sandbox.base import USER, KilledReason, Stop, Stream, in_background
from banksman.tool_runner.sandbox.etc import DIRECTORY
from banksman.tool_runner.settings import SandboxLimits, WorkspaceLimits
from banksman.tool_runner.workspaces.changes import Changes
from banksman.tool_runner.workspaces.files import HOME_DIRECTORY, PathRefused, read_part, write_whole
from banksman.tool_runner.workspaces.quota import QuotaMeter
from banksman.tool_runner.workspaces.workspace import Workspace

log = logging.getLogger(__name__)

_MAX_PROBLEM_CHARS = 600
"""Limit for the text of a schema violation: it repeats the value, which may be a whole file."""
OnProgress = Callable[[Stream, str], None]
"""Called in the event loop with each piece of output; must neither block nor raise."""
_GIT_SETTINGS = """\
[include]
	path = {etc}/gitconfig
[user]
	name = {name}
	email = {conversation}@banksman.invalid
"""
_OUTPUT_DIRECTORY = ".banksman/output"
FENCED = (
    "The outcome of this call is unknown: its runner lost the connection to the platform and ended it. "
    "It started and may have had effects, wholly or in part. It was not repeated. "
    "Check before doing it again."
)
_ESCAPED_CHARS = len("\\xff")


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """The outcome of one call. A failure of a tool is an outcome, not an exception."""

    value: JsonObject
    """`{"success": bool, ...}`, with `error` and `error_kind` when it failed."""
    is_error: bool = False
    error_kind: ErrorKind | None = None
    exit_code: int | None = None
    truncated: bool = False
    """True if `value` is incomplete."""
    output: bytes | None = None
    """The whole output, up to the runner's limit, for the object store; None if nothing was cut."""
    changed: tuple[PathChange, ...] = ()
    changed_more: int = 0
    duration_ms: int = 0
    asks: AskedInput | None = None
    """What the server of the call requests from the user; the call continues with the answer."""


def failure(kind: ErrorKind, error: str, **details: object) -> ToolOutcome:
    """Build the outcome of a failed call; `details` are further JSON values for the model."""
    value = {"success": False, "error": error, "error_kind": kind, **details}
    return ToolOutcome(value=value, is_error=True, error_kind=kind)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, slots=True)
class ToolRun:
    workspace: Workspace
    timeout_s: float
    """Maximum duration of the call in seconds; an argument of the tool can only shorten it."""
    stop: Stop
    """Ends a running call."""
    on_progress: OnProgress | None = None
    network: NetworkPolicy | None = None
    """The assistant's network policy; None if it has none."""
    user: str = ""
    """The user who started the run; empty if unknown."""
    search: SearchTarget | None = None
    """The provider of `web_search`; None if the tenant has none."""
    run_id: str = ""
    """The run whose changes of files are recorded."""
    toolchain: str | None = None
    """The name of the assistant's toolchain; None if it has none."""
    call_id: str = ""
    answer: InputResolved | None = None
    """The user's answer to what the server of an MCP tool requested."""
    found: list[Changes] = field(default_factory=list[Changes])
    """What the program of the call has changed, as soon as it has ended."""

    def finished(self, outcome: ToolOutcome, started: float) -> ToolOutcome:
        """Return the outcome with its duration and changes; `started` is a time of the monotonic clock."""
        duration_ms = round((time.monotonic() - started) * 1000)
        for changes in self.found:
            outcome = dataclasses.replace(outcome, changed=changes.paths, changed_more=changes.more)
        return dataclasses.replace(outcome, duration_ms=duration_ms)


class WorkspaceTool(Protocol):
    @property
    def definition(self) -> ToolDefinition: ...

    async def run(self, arguments: JsonObject, run: ToolRun) -> ToolOutcome:
        """Execute a call whose arguments match the definition's schema."""
        ...


class ToolBox:
    """The tools of a runner by name. Every call ends with a `ToolOutcome`, so no call can fail another."""

    def __init__(self, tools: Iterable[WorkspaceTool]) -> None:
        self._tools = {tool.definition.name: tool for tool in tools}

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        return tuple(tool.definition for tool in self._tools.values())

    def may_repeat(self, name: str) -> bool:
        """Return whether the tool's own definition declares it idempotent; False for an unknown tool."""
        tool = self._tools.get(name)
        return tool is not None and tool.definition.idempotent

    async def run(
        self,
        name: str,
        workspace: Workspace,
        arguments: JsonObject,
        *,
        timeout_s: float | None = None,
        on_output: OnProgress | None = None,
        stop: Stop | None = None,
        network: NetworkPolicy | None = None,
        user: str = "",
        search: SearchTarget | None = None,
        run_id: str = "",
        call_id: str = "",
        toolchain: str | None = None,
    ) -> ToolOutcome:
        """Execute one call. The caller holds its turn in the workspace; see `CallTurns`.

        Cancelling the caller also ends the call and its processes. Without `timeout_s`, the time-out of the
        definition applies. `network` can only narrow what this runner allows.
        """
        tool = self._tools.get(name)
        if tool is None:
            known = ", ".join(self._tools)
            return failure("unknown_tool", f"unknown tool {name[:80]!r}; available tools: {known}")
        if problem := argument_problem(tool.definition.input_schema, arguments):
            return failure("invalid_arguments", str(problem)[:_MAX_PROBLEM_CHARS])
        limit_s = tool.definition.timeout_s if timeout_s is None else timeout_s
        run = ToolRun(
            workspace, limit_s, stop or Stop(), on_output, network, user, search, run_id, toolchain, call_id
        )
        if run.stop.reason == "fenced":
            return failure("not_executed", "not executed: the runner lost its lease before the call started")
        if run.stop.reason is not None:
            return failure("cancelled", "the call was cancelled before it started")
        started = time.monotonic()
        try:
            outcome = await tool.run(arguments, run)
        except Exception as error:
            # The details may contain secrets of this machine, so they go to the log and not to the model.
            log.exception("tool %s failed", name)
            outcome = failure("tool_error", f"{name} failed: {type(error).__name__}")
        return run.finished(outcome, started)


class WorkspaceLocked(Exception):
    """The workspace is so far above its limits that no program runs in it; the text is for the model."""


class Stoppable(Protocol):
    def request(self, reason: KilledReason) -> None: ...


@asynccontextmanager
async def watching_growth(
    workspace: Workspace, stop: Stoppable, limits: SandboxLimits
) -> AsyncGenerator[WorkspaceLimits]:
    """Stop a program if it makes its workspace too large; yield its bounds.

    Raises `WorkspaceLocked` if none may run.

    A workspace that is already too large may not grow. A hard quota needs a file system per workspace;
    without it, a watchdog measures and kills.
    """
    usage = await workspace.meter.current()
    if usage.locked(workspace.limits):
        raise WorkspaceLocked(
            f"{usage.excess(workspace.limits)}; it runs no command until the user deletes files of the "
            "conversation, or starts another conversation"
        )
    bounds = usage.bounds(workspace.limits)
    async with in_background(_watch_growth(workspace.meter, stop, bounds, limits.watchdog_interval_s)):
        yield bounds


@asynccontextmanager
async def within_quota(run: ToolRun, limits: SandboxLimits) -> AsyncGenerator[None]:
    """Watch what a program changes, and its quota; see `watching_growth`."""
    before = await run.workspace.index()
    async with watching_growth(run.workspace, run.stop, limits) as bounds:
        yield
    run.found.append(await run.workspace.changes_since(before, bounds, run.run_id))


def growth_problem(workspace: Workspace) -> str:
    excess = workspace.meter.excess() or "the workspace grew beyond its limit"
    return f"{excess}; delete files first"


async def _watch_growth(meter: QuotaMeter, stop: Stoppable, bounds: WorkspaceLimits, every_s: float) -> None:
    while True:
        # The workspace was measured before the program started.
        await asyncio.sleep(every_s)
        if meter.due and (await meter.renew(bounds)).excess(bounds):
            stop.request("workspace_limit")


@dataclass(frozen=True, slots=True)
class TextPage:
    text: str
    consumed_bytes: int
    """Bytes of the source that `text` represents."""
    escaped: bool
    """True if bytes that are not UTF-8 are shown as `\\x` and two digits."""


def page(data: bytes, max_chars: int) -> TextPage:
    """Return the first characters of a text in UTF-8."""
    # surrogateescape maps each invalid byte to one character, so encoding the cut returns its exact bytes.
    cut = data.decode("utf-8", "surrogateescape")[:max_chars]
    escaped = not cut.isascii() and any("\udc80" <= char <= "\udcff" for char in cut)
    if escaped:
        cut = cut[: max(1, max_chars // _ESCAPED_CHARS)]
    source = cut.encode("utf-8", "surrogateescape")
    return TextPage(source.decode("utf-8", "backslashreplace"), len(source), escaped)


def continuation(path: str, byte_offset: int = 0) -> str:
    named = json.dumps(path, ensure_ascii=False)
    return f"Call read_file with path {named} and byte_offset {byte_offset} to read on."


def prepare_home(run: ToolRun) -> None:
    """Make the home directory of commands with an identity for git, unless it exists."""
    workspace, path = run.workspace, f"{HOME_DIRECTORY}/.gitconfig"
    workspace.has_home = True
    with contextlib.suppress(PathRefused):
        try:
            read_part(workspace.directory, path, offset=0, max_bytes=1)
        except PathRefused:
            name = _git_value(run.user or USER)
            settings = _GIT_SETTINGS.format(etc=DIRECTORY, name=name, conversation=workspace.conversation)
            write_whole(workspace.directory, path, settings.encode(), workspace.identity)


def _git_value(text: str) -> str:
    """Return a value for git's settings: quoted, on one line.

    See https://git-scm.com/docs/git-config#_syntax
    """
    printable = "".join(char if char.isprintable() else " " for char in text)
    return '"' + printable.replace("\\", "\\\\").replace('"', '\\"') + '"'


def store_output(workspace: Workspace, data: bytes, path: str | None = None) -> str | None:
    """Store an output in the workspace, by default under a new name; return its path, or None if it is full.

    The caller measures the workspace before, if a measurement is due.
    """
    path = path or f"{_OUTPUT_DIRECTORY}/{secrets.token_hex(6)}.txt"
    if workspace.meter.excess() is not None or not workspace.meter.has_room(len(data)):
        return None
    try:
        write_whole(workspace.directory, path, data, workspace.identity)
    except PathRefused:
        return None
    return path
