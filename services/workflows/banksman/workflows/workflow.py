"""A workflow: its definition and its function.

When its process dies, the function starts again from its beginning. Calls through the context are not
repeated: each call names its step, and a step that is in the log returns the recorded result. Therefore any
other effect of a function must be safe to repeat, and its steps may depend only on its parameters and earlier
results.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from banksman.contracts.registry import WorkflowDefinition
from banksman.contracts.tools import ToolResult
from banksman.contracts.wire import JsonObject


class WorkflowFailed(Exception):
    """The workflow cannot reach its goal. The user sees the message."""


class WorkflowContext(Protocol):
    """The interface of the platform for a workflow function."""

    async def tool(self, name: str, arguments: JsonObject, *, step: str) -> ToolResult:
        """Call a tool and return its result, also if it failed. Calls of workflows need no approval.

        Concurrent calls, such as those of one task group, run in parallel.

        Args:
            name: The tool.
            arguments: The arguments, an object that fits its schema.
            step: The name of this call, unique within the run. A later execution that reaches the same step
                receives the recorded result, or waits for the call that is in progress.

        Raises:
            ValueError: The step was used before, or the log has a different call under its name.
        """
        ...

    def progress(self, step: int, total: int, message: str) -> None:
        """Report progress: `step` of `total`. After a crash the last report may appear twice."""
        ...


WorkflowFunction = Callable[..., Awaitable[str]]
"""Called with a `WorkflowContext` and the parameters by name; returns the text that ends the run."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """A workflow that this process serves."""

    definition: WorkflowDefinition
    function: WorkflowFunction

    @property
    def name(self) -> str:
        """Its unique name."""
        return self.definition.name

    async def __call__(self, context: WorkflowContext, parameters: dict[str, Any]) -> str:
        """Run the function."""
        return await self.function(context, **parameters)
