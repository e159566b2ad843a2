from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from banksman.contracts.network import NetworkPolicy
from banksman.contracts.tools import ErrorKind, PathChange, ToolDefinition
from banksman.contracts.wire import JsonObject
from banksman.tool_runner.sandbox.base import Stop
from banksman.tool_runner.workspaces.workspace import Workspace

OnProgress = Callable[[Literal["stdout", "stderr"], str], None]
"""Called in the event loop with each piece of output; must neither block nor raise."""


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
    duration_ms: int = 0


def failure(kind: ErrorKind, error: str, **details: object) -> ToolOutcome:
    """Build the outcome of a failed call; `details` are further JSON values for the model."""
    value = {"success": False, "error": error, "error_kind": kind, **details}
    return ToolOutcome(value=value, is_error=True, error_kind=kind)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, slots=True)
class ToolRun:
    """The context of one call."""

    workspace: Workspace
    timeout_s: float
    """Maximum duration of the call in seconds; an argument of the tool can only shorten it."""
    stop: Stop
    """Ends a running call."""
    on_progress: OnProgress | None = None
    network: NetworkPolicy | None = None
    """The assistant's network policy; None if it has none."""


class Tool(Protocol):
    """A tool: its definition and its implementation."""

    @property
    def definition(self) -> ToolDefinition:
        """The definition that models receive."""
        ...

    async def run(self, arguments: JsonObject, run: ToolRun) -> ToolOutcome:
        """Execute a call whose arguments match the definition's schema."""
        ...
