"""Workflows without code: their steps are data, which the workflows service executes one after the other.

Texts may refer to values that are known when their step begins: `{{parameters.topic}}` is a parameter of the
form, and `{{steps.outline}}` the value of an earlier step. A path selects a value in objects and lists
(`{{steps.search.matches.0.path}}`), and `{{parameters.tone|friendly}}` has a default for a missing value.
Nothing else is evaluated.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from banksman.contracts.tools import ToolName
from banksman.contracts.wire import JsonObject, Stored

MAX_STEPS = 50
MAX_TEMPLATE_CHARS = 20_000
MAX_BUILT_BYTES = 64 * 1024
"""Maximum bytes of the JSON of a workflow's definition with its steps."""
DAY_S = 86_400.0

BuiltStepName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]
"""The name of a step, by which later steps refer to its value; unique within the workflow."""
Template = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TEMPLATE_CHARS)]
"""Text with references to parameters and to earlier steps."""
Expiry = Annotated[float, Field(gt=0, le=365 * DAY_S)]
"""Seconds until a request to the user expires, which ends the run as failed."""


class PromptStep(Stored):
    """An agent run replies to a prompt. Its value is the text of the reply."""

    type: Literal["prompt"]
    name: BuiltStepName
    prompt: Template
    system_prompt: str | None = Field(default=None, max_length=MAX_TEMPLATE_CHARS)
    """A template in place of the assistant's system prompt, with the variables of system prompts."""
    tools: tuple[ToolName, ...] | None = Field(default=(), max_length=100)
    """Tools that the model may call; null for the assistant's tools."""
    max_iterations: int | None = Field(default=None, ge=1, le=1000)
    with_conversation: bool = False
    """Whether the transcript of the conversation in which the workflow was started precedes the prompt."""


class ToolCallStep(Stored):
    """A call of a tool under the approval policy of the assistant. Its value is the tool's result."""

    type: Literal["tool"]
    name: BuiltStepName
    tool: ToolName
    arguments: JsonObject = Field(default_factory=dict)
    """Each text may have references. A text that is a single reference becomes its value, with its type."""
    on_failure: Literal["end", "continue"] = "end"
    """
    end       a failed call ends the run as failed
    continue  the value of the step is the failed result, with `error`
    """


class RequestStep(Stored):
    """A request for a value from the user. Its value is what the user provides."""

    type: Literal["input"]
    name: BuiltStepName
    message: Template
    form: JsonObject = Field(default_factory=lambda: {"type": "string"})
    """JSON Schema of the value."""
    expires_s: Expiry = 7 * DAY_S


class ApprovalStep(Stored):
    """An approval point: the user approves that the workflow goes on, or the run ends as failed."""

    type: Literal["approval"]
    name: BuiltStepName
    message: Template
    expires_s: Expiry = 7 * DAY_S


BuiltStep = Annotated[PromptStep | ToolCallStep | RequestStep | ApprovalStep, Field(discriminator="type")]


class Built(Stored):
    """The definition of a workflow without code."""

    steps: tuple[BuiltStep, ...] = Field(min_length=1, max_length=MAX_STEPS)
    """The steps, which run one after the other."""
    result: str = Field(default="", max_length=MAX_TEMPLATE_CHARS)
    """The text that the user reads at the end, with references; empty for the value of the last step that
    is not an approval."""
