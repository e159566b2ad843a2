"""A workflow: its definition, and the function that does it.

The function is run again from its start whenever its process is lost. What it did through its context is not
done again: each call has a step's name, and the log answers for the steps that it holds. So everything a
function does outside its context must be harmless to repeat, and its steps must follow from its parameters
and from earlier results alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from banksman.contracts.registry import WorkflowDefinition
from banksman.contracts.tools import ToolResult
from banksman.contracts.wire import JsonObject


class WorkflowFailed(Exception):
    """The workflow cannot reach its goal. The message is what the user is told."""


class WorkflowContext(Protocol):
    """What a workflow function may do to the world."""

    async def tool(self, name: str, arguments: JsonObject, *, step: str) -> ToolResult:
        """Call a tool and wait for its result; a failure is a result too. Nobody is asked for approval.

        Calls that are asked for together, as by the tasks of one group, run together.

        Args:
            name: The tool.
            arguments: What its schema describes.
            step: Names this call within the run. Another execution that comes to the same step gets the
                result that is in the log, or waits for the call that is under way.

        Raises:
            ValueError: the step was used before, or the log has another call under its name.
        """
        ...

    def progress(self, step: int, total: int, message: str) -> None:
        """Tell how far the workflow is: `step` of `total`. After a crash the last one may be told twice."""
        ...


WorkflowFunction = Callable[..., Awaitable[str]]
"""Called with a `WorkflowContext` and the parameters by name; returns what the user reads in the end."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """One workflow that this process serves."""

    definition: WorkflowDefinition
    function: WorkflowFunction

    @property
    def name(self) -> str:
        """What it is started by."""
        return self.definition.name

    async def __call__(self, context: WorkflowContext, parameters: dict[str, Any]) -> str:
        """Run the function."""
        return await self.function(context, **parameters)
