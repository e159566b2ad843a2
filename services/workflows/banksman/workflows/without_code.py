"""Workflows without code: checked when they are stored, executed in turns like other workflows.

Steps refer to parameters and to the values of earlier steps. Nothing is evaluated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import assert_never

from banksman.contracts import workflows
from banksman.contracts.errors import BadInput
from banksman.contracts.registry import STORED_SERVER, WorkflowDefinition
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject, JsonValue
from banksman.prompting.templates import Placeholder, look_up, parts_of
from banksman.sdk.servers.turns import take_turn
from banksman.sdk.workflows import Workflow, WorkflowContext, WorkflowFailed

MAX_MESSAGE_CHARS = 4_000


async def take_built_turn(built: workflows.Built, turn: workflows.WorkflowTurn) -> workflows.TurnReply:
    async def execute(context: WorkflowContext, /, **parameters: JsonValue) -> str:
        return await _execute(built, context, Values(parameters))

    definition = WorkflowDefinition(name=turn.workflow, server=STORED_SERVER)
    return await take_turn(Workflow(definition, execute), turn)


async def _execute(built: workflows.Built, context: WorkflowContext, values: Values) -> str:
    for number, step in enumerate(built.steps, start=1):
        context.progress(number, len(built.steps), step.name)
        values.steps[step.name] = await _value_of(step, context, values)
    if built.result:
        return values.text("result", built.result)
    # The value of an approval is always true, which is not a useful result for a user.
    named = [step.name for step in built.steps if not isinstance(step, workflows.ApprovalStep)]
    last = values.steps[named[-1]] if named else "Approved."
    return last if isinstance(last, str) else json.dumps(last, ensure_ascii=False, indent=2)


async def _value_of(step: workflows.BuiltStep, context: WorkflowContext, values: Values) -> JsonValue:
    """Execute a step and return its value; raise `WorkflowFailed` if the run ends with this step."""
    match step:
        case workflows.PromptStep():
            return await _reply(step, context, values)
        case workflows.ToolCallStep():
            return await _call(step, context, values)
        case workflows.RequestStep():
            message = values.text(step.name, step.message, MAX_MESSAGE_CHARS)
            return await context.input(message, step.form, step=step.name, expires_s=step.expires_s)
        case workflows.ApprovalStep():
            message = values.text(step.name, step.message, MAX_MESSAGE_CHARS)
            form: dict[str, JsonValue] = {"type": "boolean", "title": "Approve", "x-hint": "approval"}
            if await context.input(message, form, step=step.name, expires_s=step.expires_s) is not True:
                raise WorkflowFailed(f"{step.name} was rejected.")
            return True
        case _:
            assert_never(step)


async def _reply(step: workflows.PromptStep, context: WorkflowContext, values: Values) -> JsonValue:
    result = await context.run(
        values.text(step.name, step.prompt),
        step=step.name,
        system_prompt=step.system_prompt,
        tools=step.tools,
        max_iterations=step.max_iterations,
        with_conversation=step.with_conversation,
    )
    if result.is_error:
        reason = result.content.get("content") or result.content.get("error")
        raise WorkflowFailed(f"{step.name}: the agent run did not complete: {reason}")
    return result.content.get("content")


async def _call(step: workflows.ToolCallStep, context: WorkflowContext, values: Values) -> JsonValue:
    arguments = values.arguments(step.name, step.arguments)
    result = await context.tool(step.tool, arguments, step=step.name)
    if result.is_error and step.on_failure == "end":
        raise WorkflowFailed(f"{step.name}: {step.tool} failed: {result.content.get('error')}")
    return result.content


MAX_FILLED_CHARS = 200_000
"""Maximum characters of the texts and arguments of one step, because they may repeat a result many times."""


@dataclass
class Values:
    parameters: JsonObject
    steps: JsonObject = field(default_factory=dict[str, JsonValue])

    def text(self, step: str, template: str, most: int = MAX_FILLED_CHARS) -> str:
        """Return a text of at most `most` characters with its references replaced by their values."""
        return _Filling(self, step, most).text(template)

    def arguments(self, step: str, arguments: JsonObject) -> JsonObject:
        filling = _Filling(self, step, MAX_FILLED_CHARS)
        return {name: filling.value(value) for name, value in arguments.items()}


@dataclass
class _Filling:
    values: Values
    step: str
    left: int
    """Characters that may still be added."""

    def value(self, template: JsonValue) -> JsonValue:
        match template:
            case str():
                pieces = list(parts_of(template))
                # A text that consists of one reference becomes the value and keeps its type.
                alone = pieces[0] if len(pieces) == 1 else None
                return self._value(alone) if isinstance(alone, Placeholder) else self.text(template)
            case list():
                return [self.value(one) for one in template]
            case dict():
                return {name: self.value(one) for name, one in template.items()}
            case _:
                return template

    def text(self, template: str) -> str:
        return "".join(map(self._text, parts_of(template)))

    def _text(self, piece: str | Placeholder) -> str:
        if isinstance(piece, str):
            self._count(len(piece))
            return piece
        value = self._value(piece)
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)

    def _value(self, reference: Placeholder) -> JsonValue:
        known: JsonObject = {"parameters": self.values.parameters, "steps": self.values.steps}
        value = look_up(reference.path, known)
        if value is None:
            value = reference.default
        if value is None:
            raise WorkflowFailed(f"{self.step}: {reference.path} has no value.")
        self._count(len(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)))
        return value

    def _count(self, chars: int) -> None:
        self.left -= chars
        if self.left < 0:
            raise WorkflowFailed(f"{self.step}: the referenced values are too long.")


def references_in(template: JsonValue) -> Iterator[Placeholder]:
    """Yield the references in the texts of a value; raise `BadInput` if braces contain no name."""
    match template:
        case str():
            yield from (piece for piece in parts_of(template) if isinstance(piece, Placeholder))
        case list():
            for one in template:
                yield from references_in(one)
        case dict():
            for one in template.values():
                yield from references_in(one)
        case _:
            pass


FindTool = Callable[[str], ToolDefinition | None]


def check_built(definition: WorkflowDefinition, find_tool: FindTool) -> None:
    """Check the steps of a workflow.

    Raises:
        BadInput: The workflow has no steps, a name is used twice, a tool or a required argument is missing,
            or a reference names neither a parameter nor an earlier step.
    """
    if definition.built is None:
        raise BadInput("built", None, "the steps of the workflow")
    size = len(definition.model_dump_json())
    if size > workflows.MAX_BUILT_BYTES:
        raise BadInput(
            "built", None, f"must have at most {workflows.MAX_BUILT_BYTES} bytes as JSON, not {size}"
        )
    earlier: list[str] = []
    for number, step in enumerate(definition.built.steps):
        place = f"built.steps.{number}"
        if step.name in earlier:
            raise BadInput(f"{place}.name", step.name, "a name that no other step has")
        for part, template in _templates(step):
            _check_references(f"{place}.{part}", template, definition, earlier)
        if isinstance(step, workflows.ToolCallStep):
            _check_call(place, step, find_tool(step.tool))
        earlier.append(step.name)
    _check_references("built.result", definition.built.result, definition, earlier)


def value_forms(definition: WorkflowDefinition) -> JsonObject | None:
    """Return one schema with the forms of all requested values; None if no step requests a value."""
    steps = () if definition.built is None else definition.built.steps
    forms: JsonObject = {step.name: step.form for step in steps if isinstance(step, workflows.RequestStep)}
    return {"type": "object", "properties": forms} if forms else None


def _templates(step: workflows.BuiltStep) -> Iterator[tuple[str, JsonValue]]:
    match step:
        case workflows.PromptStep():
            yield "prompt", step.prompt
        case workflows.ToolCallStep():
            yield "arguments", step.arguments
        case workflows.RequestStep() | workflows.ApprovalStep():
            yield "message", step.message
        case _:
            assert_never(step)


def _check_references(
    place: str, template: JsonValue, definition: WorkflowDefinition, earlier: list[str]
) -> None:
    properties = definition.parameters_schema.get("properties")
    parameters = list(properties) if isinstance(properties, dict) else []
    allowed = [*(f"parameters.{name}" for name in parameters), *(f"steps.{name}" for name in earlier)]
    try:
        references = list(references_in(template))
    except BadInput as error:
        raise BadInput(place, error.value, "a parameter or an earlier step between the braces") from error
    for reference in references:
        if ".".join(reference.path.split(".")[:2]) not in allowed:
            known = f": {', '.join(allowed)}" if allowed else "; there is none"
            raise BadInput(place, "{{" + reference.path + "}}", f"a parameter or an earlier step{known}")


def _check_call(place: str, step: workflows.ToolCallStep, tool: ToolDefinition | None) -> None:
    if tool is None:
        raise BadInput(f"{place}.tool", step.tool, "the name of a tool")
    required = tool.input_schema.get("required")
    missing = [name for name in required if name not in step.arguments] if isinstance(required, list) else []
    if missing:
        raise BadInput(f"{place}.arguments.{missing[0]}", None, f"a value, because {step.tool} needs it")
