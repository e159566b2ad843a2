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
"""Called in the event loop with each piece of output as it comes; must neither block nor raise."""


@dataclass(frozen=True, slots=True)
class ToolOutcome:
    """How one call ended. A tool's failure is an outcome, never an exception."""

    value: JsonObject
    """`{"success": bool, ...}`, with `error` and `error_kind` when it failed."""
    is_error: bool = False
    error_kind: ErrorKind | None = None
    exit_code: int | None = None
    truncated: bool = False
    """True when `value` shows less than there was."""
    output: bytes | None = None
    """What was cut, in full or up to the runner's bound, for the object store; None when nothing was cut."""
    changed: tuple[PathChange, ...] = ()
    duration_ms: int = 0


def failure(kind: ErrorKind, error: str, **details: object) -> ToolOutcome:
    """The outcome of a call that failed; `details` are further JSON values for the model."""
    value = {"success": False, "error": error, "error_kind": kind, **details}
    return ToolOutcome(value=value, is_error=True, error_kind=kind)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, slots=True)
class ToolRun:
    """What surrounds one call."""

    workspace: Workspace
    timeout_s: float
    """The most the call may take; a tool's argument can only shorten it."""
    stop: Stop
    """Ends a running call."""
    on_progress: OnProgress | None = None
    network: NetworkPolicy | None = None
    """Where the assistant's settings let the call connect to; None for no settings."""


class Tool(Protocol):
    """One tool: what a model is told of it, and what it does."""

    @property
    def definition(self) -> ToolDefinition:
        """What a model is told."""
        ...

    @property
    def exclusive(self) -> bool:
        """True when its calls take their turn in the workspace; False when they may overlap."""
        ...

    async def run(self, arguments: JsonObject, run: ToolRun) -> ToolOutcome:
        """Execute arguments that fit the definition's schema."""
        ...
