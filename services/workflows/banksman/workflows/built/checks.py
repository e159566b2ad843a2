"""Checks of a workflow without code when it is stored. Each error names the field of the step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import assert_never

from banksman.contracts.errors import BadInput
from banksman.contracts.registry import WorkflowDefinition
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject, JsonValue
from banksman.contracts.workflows import (
    MAX_BUILT_BYTES,
    ApprovalStep,
    BuiltStep,
    PromptStep,
    RequestStep,
    ToolCallStep,
)
from banksman.prompting.templates import Placeholder
from banksman.workflows.built.references import references_in

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
    if size > MAX_BUILT_BYTES:
        raise BadInput("built", None, f"must have at most {MAX_BUILT_BYTES} bytes as JSON, not {size}")
    earlier: list[str] = []
    for number, step in enumerate(definition.built.steps):
        place = f"built.steps.{number}"
        if step.name in earlier:
            raise BadInput(f"{place}.name", step.name, "a name that no other step has")
        for field, template in _templates(step):
            _check_references(f"{place}.{field}", template, definition, earlier)
        if isinstance(step, ToolCallStep):
            _check_call(place, step, find_tool(step.tool))
        earlier.append(step.name)
    _check_references("built.result", definition.built.result, definition, earlier)


def value_forms(definition: WorkflowDefinition) -> JsonObject | None:
    """Return one schema with the forms of all requested values; None if no step requests a value."""
    steps = () if definition.built is None else definition.built.steps
    forms: JsonObject = {step.name: step.form for step in steps if isinstance(step, RequestStep)}
    return {"type": "object", "properties": forms} if forms else None


def _templates(step: BuiltStep) -> Iterator[tuple[str, JsonValue]]:
    match step:
        case PromptStep():
            yield "prompt", step.prompt
        case ToolCallStep():
            yield "arguments", step.arguments
        case RequestStep() | ApprovalStep():
            yield "message", step.message
        case _:
            assert_never(step)


def _check_references(
    place: str, template: JsonValue, definition: WorkflowDefinition, earlier: list[str]
) -> None:
    properties = definition.parameters_schema.get("properties")
    parameters = list(properties) if isinstance(properties, dict) else []
    allowed = [*(f"parameters.{name}" for name in parameters), *(f"steps.{name}" for name in earlier)]
    for reference in _references(place, template):
        if ".".join(reference.path.split(".")[:2]) not in allowed:
            known = f": {', '.join(allowed)}" if allowed else "; there is none"
            raise BadInput(place, "{{" + reference.path + "}}", f"a parameter or an earlier step{known}")


def _references(place: str, template: JsonValue) -> list[Placeholder]:
    try:
        return list(references_in(template))
    except BadInput as error:
        raise BadInput(place, error.value, "a parameter or an earlier step between the braces") from error


def _check_call(place: str, step: ToolCallStep, tool: ToolDefinition | None) -> None:
    if tool is None:
        raise BadInput(f"{place}.tool", step.tool, "the name of a tool")
    required = tool.input_schema.get("required")
    missing = [name for name in required if name not in step.arguments] if isinstance(required, list) else []
    if missing:
        raise BadInput(f"{place}.arguments.{missing[0]}", None, f"a value, because {step.tool} needs it")
