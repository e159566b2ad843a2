"""Workflows: typed functions that users start by name.

    @workflow(category="release")
    async def tag_release(context: WorkflowContext, version: str) -> str:
        \"\"\"Tag a release.

        :param version: Such as 1.2.3.
        \"\"\"
        await context.tool("bash", {"command": f"git tag {version}"}, step="tag")
        return f"Tagged {version}."

The form comes from the annotations, its texts from the docstring. After a crash of its process, the function
restarts from its beginning: a step in the log returns its recorded result and is not repeated. Therefore
everything with an effect must be a step, and the steps may depend only on the parameters and on the results
of earlier steps.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from banksman.contracts import workflows
from banksman.contracts.model_options import ModelOptions
from banksman.contracts.registry import WorkflowDefinition
from banksman.contracts.wire import JsonObject, JsonValue, strict_json
from banksman.sdk.parameters import Docstring, Parameters

if TYPE_CHECKING:
    from banksman.sdk.servers.turns import TakenTurn


class WorkflowFailed(Exception):
    """Raised by a function whose goal cannot be reached. The user reads its text."""


class WorkflowContext:
    """The first parameter of a workflow's function: its steps, its outputs and its run.

    Each step has a name, unique within the run. Steps of one task group run concurrently.
    """

    def __init__(self, taken: TakenTurn) -> None:
        self._taken = taken
        self.tenant = taken.turn.tenant
        self.run_id = taken.turn.run_id
        """The id of the run, the same in each of its executions."""
        self.user = taken.turn.user
        """The user who started the run."""

    async def tool(self, name: str, arguments: JsonObject, *, step: str) -> workflows.StepResult:
        """Call a tool under the assistant's approval policy; return its result, also a failed one.

        Like all steps, it raises `ValueError` if the step name was used before, or the log has another such
        step.
        """
        strict_json(json.dumps(arguments), what="arguments")
        return await self._taken.result_of(workflows.ToolStep(step=step, tool=name, arguments=arguments))

    async def input(
        self,
        message: str,
        schema: JsonObject | None = None,
        *,
        step: str,
        expires_s: float = 7.0 * workflows.DAY_S,
    ) -> JsonValue:
        """Request a value from the user and return it. The process need not live until the reply arrives.

        `schema` is its JSON Schema, None for a text. Raises `WorkflowFailed` after `expires_s` seconds.
        """
        form: JsonObject = {"type": "string"} if schema is None else schema
        requested = workflows.InputStep(step=step, message=message, schema=form, expires_s=expires_s)
        result = await self._taken.result_of(requested)
        if result.is_error:
            raise WorkflowFailed(f"{message}: {result.content.get('error')}")
        return result.content.get("value")

    async def run(
        self,
        message: str,
        *,
        step: str,
        system_prompt: str | None = None,
        tools: Sequence[str] | None = None,
        max_iterations: int | None = None,
        with_conversation: bool = False,
        options: ModelOptions = ModelOptions(),  # noqa: B008  # frozen
    ) -> workflows.StepResult:
        """Start an agent run in the same workspace, and return its outcome; None keeps the assistant's value.

        With `with_conversation`, the transcript of the conversation in which the workflow was started
        precedes the message. `content` of the result has `status`, `content` and `run_id`; `is_error` unless
        it completed. With a `response_schema` in `options`, it also has `structured_output`.
        """
        return await self._taken.result_of(
            workflows.AgentRunStep(
                step=step,
                message=message,
                system_prompt=system_prompt,
                tools=None if tools is None else tuple(tools),
                max_iterations=max_iterations,
                with_conversation=with_conversation,
                options=options,
            )
        )

    def progress(self, step: int, total: int, message: str = "") -> None:
        """Report progress: `step` of `total`. It is stored with the next step, or with the end."""
        self._taken.report(workflows.Progress(step=step, total=total, message=message))

    def text(self, markdown: str) -> None:
        """Produce a text in addition to the returned one."""
        self._taken.outputs.append(workflows.TextOutput(text=markdown))

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[JsonValue]], *, title: str = "") -> None:
        """Produce a table."""
        cells = tuple(tuple(row) for row in rows)
        self._taken.outputs.append(workflows.TableOutput(title=title, columns=tuple(columns), rows=cells))

    def file(self, path: str, *, title: str = "") -> None:
        """Present a file of the workspace."""
        self._taken.outputs.append(workflows.FileOutput(path=path, title=title))


WorkflowFunction = Callable[..., Awaitable[str]]
"""Called with a `WorkflowContext` and the parameters by name; returns the text that ends the run."""


@dataclass(frozen=True, slots=True)
class Workflow:
    """A function with its definition."""

    definition: WorkflowDefinition
    function: WorkflowFunction
    parameters: Parameters | None = None
    """Converts the parameters to the annotated types; None passes them unchanged."""

    @property
    def name(self) -> str:
        """Its unique name."""
        return self.definition.name

    async def __call__(self, context: WorkflowContext, values: JsonObject) -> str:
        """Run the function; raise `BadInput` if a parameter does not fit its type."""
        bound: dict[str, Any] = values if self.parameters is None else self.parameters.convert(values)
        return await self.function(context, **bound)


Hint = Literal["text", "multiline", "number", "choice", "several", "file", "secret", "date"]


def hint(control: Hint) -> Any:
    """Return an annotation that selects the control of a parameter in the form."""
    return Field(json_schema_extra={"x-hint": control})


def workflow(
    *,
    name: str | None = None,
    title: str = "",
    description: str | None = None,
    category: str = "general",
    timeout_s: float = 3600.0,
    positional: Sequence[str] = (),
) -> Callable[[WorkflowFunction], Workflow]:
    """Return a decorator that makes a workflow of an async function.

    The first parameter receives the `WorkflowContext`; each other one needs a type and becomes a field of the
    form. `Annotated[str, hint("multiline")]` selects its control.

    Args:
        name: The name; None uses the function's name.
        title: The name that users read; empty derives it from `name`.
        description: The description; None uses the docstring's.
        category: The name of its category.
        timeout_s: Seconds of work after which a run ends; time spent waiting for a user does not count.
        positional: Names of the parameters that a command may give without their names, in this order.

    Raises:
        TypeError: A parameter has no type, or there is no description.
    """

    def create(function: WorkflowFunction) -> Workflow:
        identifier = name or getattr(function, "__name__", "")
        docstring = Docstring.of(function, identifier, description)
        parameters = Parameters.of(function, docstring.parameters, context=WorkflowContext)
        schema: JsonObject = {**parameters.schema}
        if positional:
            schema["x-positional"] = [*positional]
        definition = WorkflowDefinition(
            name=identifier,
            title=title or identifier.replace("_", " ").capitalize(),
            description=docstring.description,
            category=category,
            parameters_schema=schema,
            timeout_s=timeout_s,
        )
        return Workflow(definition, function, parameters)

    return create
