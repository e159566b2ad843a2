"""The function of a workflow without code, which takes turns like other workflows."""

from __future__ import annotations

import json
from typing import assert_never

from banksman.contracts.registry import STORED_SERVER, WorkflowDefinition
from banksman.contracts.wire import JsonValue
from banksman.contracts.workflows import (
    ApprovalStep,
    Built,
    BuiltStep,
    PromptStep,
    RequestStep,
    ToolCallStep,
    TurnReply,
    WorkflowTurn,
)
from banksman.sdk.servers.turns import take_turn
from banksman.sdk.workflows import Workflow, WorkflowContext, WorkflowFailed
from banksman.workflows.built.references import Values

MAX_MESSAGE_CHARS = 4_000
"""Maximum characters of a request to the user."""


async def take_built_turn(built: Built, turn: WorkflowTurn) -> TurnReply:
    """Take the turn of a workflow without code."""

    async def execute(context: WorkflowContext, /, **parameters: JsonValue) -> str:
        return await _execute(built, context, Values(parameters))

    definition = WorkflowDefinition(name=turn.workflow, server=STORED_SERVER)
    return await take_turn(Workflow(definition, execute), turn)


async def _execute(built: Built, context: WorkflowContext, values: Values) -> str:
    for number, step in enumerate(built.steps, start=1):
        context.progress(number, len(built.steps), step.name)
        values.steps[step.name] = await _value_of(step, context, values)
    if built.result:
        return values.text("result", built.result)
    # The value of an approval is always true, which is not a useful result for a user.
    named = [step.name for step in built.steps if not isinstance(step, ApprovalStep)]
    last = values.steps[named[-1]] if named else "Approved."
    return last if isinstance(last, str) else json.dumps(last, ensure_ascii=False, indent=2)


async def _value_of(step: BuiltStep, context: WorkflowContext, values: Values) -> JsonValue:
    """Execute a step and return its value.

    Raises:
        WorkflowFailed: The run ends with this step.
    """
    match step:
        case PromptStep():
            return await _reply(step, context, values)
        case ToolCallStep():
            return await _call(step, context, values)
        case RequestStep():
            message = values.text(step.name, step.message, MAX_MESSAGE_CHARS)
            return await context.input(message, step.form, step=step.name, expires_s=step.expires_s)
        case ApprovalStep():
            message = values.text(step.name, step.message, MAX_MESSAGE_CHARS)
            form: dict[str, JsonValue] = {"type": "boolean", "title": "Approve", "x-hint": "approval"}
            if await context.input(message, form, step=step.name, expires_s=step.expires_s) is not True:
                raise WorkflowFailed(f"{step.name} was rejected.")
            return True
        case _:
            assert_never(step)


async def _reply(step: PromptStep, context: WorkflowContext, values: Values) -> JsonValue:
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


async def _call(step: ToolCallStep, context: WorkflowContext, values: Values) -> JsonValue:
    arguments = values.arguments(step.name, step.arguments)
    result = await context.tool(step.tool, arguments, step=step.name)
    if result.is_error and step.on_failure == "end":
        raise WorkflowFailed(f"{step.name}: {step.tool} failed: {result.content.get('error')}")
    return result.content
