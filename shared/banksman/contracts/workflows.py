"""Workflows: the turns of functions that a workflow server serves, and the steps of workflows without code.

A turn runs a workflow's function from its beginning. A step in the log returns its recorded result, and the
turn ends at the first steps that are not in the log, or at the end of the function. A process therefore has
no state between two turns, and any process of the same server may take the next one.

The steps of a workflow without code are data, which the workflows service executes one after the other. Texts
may refer to values that are known when their step begins: `{{parameters.topic}}` is a parameter of the form,
and `{{steps.outline}}` the value of an earlier step. A path selects a value in objects and lists
(`{{steps.search.matches.0.path}}`), and `{{parameters.tone|friendly}}` has a default for a missing value.
Nothing else is evaluated.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from banksman.contracts.model_options import ModelOptions
from banksman.contracts.tools import ErrorKind, ToolName
from banksman.contracts.wire import FiniteObject, JsonObject, JsonValue, Stored, Token

MAX_TURN_BYTES = 900 * 1024
"""Maximum bytes of a turn with all recorded results; a run that needs more fails."""
TURN_S = 30.0
"""Seconds within which a function must reach its next step or its end."""
MAX_REPORTS = 1_000
"""Maximum number of progress reports of one turn."""
PROGRESS_INTERVAL_S = 1.0
"""Minimum seconds between two progress reports stored during a turn; others are stored with the reply."""
DAY_S = 86_400

StepName = Annotated[str, Field(min_length=1, max_length=200)]
"""The name of a step, unique within the run."""


class StepResult(Stored):
    """The recorded result of a step."""

    digest: str
    """Digest of the step. A function that repeats the step with another digest is not deterministic."""
    content: JsonObject
    """A tool's result; `{"success": true, "value"}` of an input; of an agent run `{"success", "status",
    "content", "run_id"}`."""
    is_error: bool = False
    error_kind: ErrorKind | None = None


class WorkflowTurn(Stored):
    """`workflow.turn.{server}.{t}.{c}`: run a workflow's function up to its next steps or its end."""

    tenant: Token
    conversation_id: Token
    run_id: Token
    user: str = ""
    workflow: Token
    parameters: JsonObject = Field(default_factory=dict)
    results: dict[str, StepResult] = Field(default_factory=dict[str, StepResult])
    left_s: float = DAY_S


class ToolStep(Stored):
    """Call a tool under the approval policy of the assistant."""

    kind: Literal["tool"] = "tool"
    step: StepName
    tool: ToolName
    arguments: FiniteObject = Field(default_factory=dict)


class InputStep(Stored):
    """Request a value from the user."""

    kind: Literal["input"] = "input"
    step: StepName
    message: str = Field(min_length=1, max_length=4_000)
    schema_: JsonObject = Field(default_factory=lambda: {"type": "string"}, alias="schema")
    """JSON Schema of the value."""
    expires_s: float = Field(default=7.0 * DAY_S, gt=0, le=365.0 * DAY_S)
    """Seconds until the request expires; the step then has an error with the kind `timeout`."""


class AgentRunStep(Stored):
    """Start an agent run and wait for its end."""

    kind: Literal["run"] = "run"
    step: StepName
    message: str = Field(min_length=1, max_length=200_000)
    system_prompt: str | None = Field(default=None, max_length=100_000)
    """A template in place of the assistant's prompt."""
    tools: tuple[str, ...] | None = None
    """Names of the tools that its model may call; None for those of the assistant, `()` for none."""
    with_conversation: bool = Field(default=False, exclude_if=lambda wanted: not wanted)
    """True prepends the transcript of the conversation in which the workflow was started to the message."""
    max_iterations: int | None = Field(default=None, ge=1, le=1000)
    options: ModelOptions = Field(
        default=ModelOptions(), exclude_if=lambda options: options == ModelOptions()
    )
    """Options of its model requests; an option that is None keeps the assistant's."""


INPUT_CALL = "request_input"
"""Name of the call that records a step which requests a value; a tool may have this name too."""


def call_of(step: ToolStep | InputStep | AgentRunStep) -> tuple[str, JsonObject]:
    """Return the name and the arguments of the call that records a step in the log."""
    match step:
        case ToolStep():
            return step.tool, step.arguments
        case InputStep():
            return INPUT_CALL, {"message": step.message, "schema": step.schema_}
        case AgentRunStep():
            return "start_run", step.model_dump(mode="json", exclude={"kind", "step"}, exclude_none=True)


Step = Annotated[ToolStep | InputStep | AgentRunStep, Field(discriminator="kind")]


class Progress(Stored):
    """Progress of the run: `step` of `total`."""

    step: int = Field(ge=0)
    total: int = Field(ge=0)
    message: str = Field(default="", max_length=1_000)


class TextOutput(Stored):
    """Markdown text."""

    kind: Literal["text"] = "text"
    text: str


class TableOutput(Stored):
    """A table."""

    kind: Literal["table"] = "table"
    title: str = ""
    columns: tuple[str, ...] = Field(max_length=50)
    rows: tuple[tuple[JsonValue, ...], ...] = Field(default=(), max_length=5_000)


class FileOutput(Stored):
    """A file of the workspace."""

    kind: Literal["file"] = "file"
    path: str = Field(max_length=4_096)
    title: str = ""


Output = Annotated[TextOutput | TableOutput | FileOutput, Field(discriminator="kind")]


class TurnEnd(Stored):
    """The end of the function."""

    status: Literal["completed", "failed"] = "completed"
    content: str = ""
    """The text that the user reads; the reason of a failure."""
    outputs: tuple[Output, ...] = Field(default=(), max_length=1_000)


class TurnReply(Stored):
    """The reply to a turn: its next steps, or its end."""

    progress: tuple[Progress, ...] = Field(default=(), max_length=MAX_REPORTS)
    """Progress since the last recorded step."""
    steps: tuple[Step, ...] = Field(default=(), max_length=100)
    """Steps without a recorded result. They run concurrently; the next turn has all of their results."""
    end: TurnEnd | None = None


class ReportProgress(Stored):
    """`workflow.progress`: store progress before the turn ends. The turn's reply repeats it."""

    server: Token
    tenant: Token
    conversation_id: Token
    run_id: Token
    progress: Progress


class ProgressReported(Stored):
    """The reply to `workflow.progress`."""

    stored: bool
    """False if progress was stored less than a second ago, or the stored progress is as far as this one."""


class CancelTurn(Stored):
    """`workflow.cancel.{server}.{t}.{c}`: end the function of a run. A reply to its turn is ignored."""

    run_id: Token


MAX_STEPS = 50
MAX_TEMPLATE_CHARS = 20_000
MAX_BUILT_BYTES = 64 * 1024
"""Maximum bytes of the JSON of a workflow's definition with its steps."""

BuiltStepName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]
"""The name of a step, by which later steps refer to its value; unique within the workflow."""
Template = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TEMPLATE_CHARS)]
"""Text with references to parameters and to earlier steps."""
Expiry = Annotated[float, Field(gt=0, le=365.0 * DAY_S)]
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
    arguments: FiniteObject = Field(default_factory=dict)
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
    expires_s: Expiry = 7.0 * DAY_S


class ApprovalStep(Stored):
    """An approval point: the user approves that the workflow goes on, or the run ends as failed."""

    type: Literal["approval"]
    name: BuiltStepName
    message: Template
    expires_s: Expiry = 7.0 * DAY_S


BuiltStep = Annotated[PromptStep | ToolCallStep | RequestStep | ApprovalStep, Field(discriminator="type")]


class Built(Stored):
    """The definition of a workflow without code."""

    steps: tuple[BuiltStep, ...] = Field(min_length=1, max_length=MAX_STEPS)
    """The steps, which run one after the other."""
    result: str = Field(default="", max_length=MAX_TEMPLATE_CHARS)
    """The text that the user reads at the end, with references; empty for the value of the last step that
    is not an approval."""


class WorkflowProgress(Stored):
    """The progress of a workflow."""

    type: Literal["workflow.progress"] = "workflow.progress"
    step: int
    total: int
    message: str


class WorkflowOutput(Stored):
    """Output of a workflow in addition to its text; `run.finished` follows."""

    type: Literal["workflow.output"] = "workflow.output"
    output: Output


class WorkflowLinked(Stored):
    """A workflow was started in this conversation. Its own log contains its events."""

    type: Literal["workflow.linked"] = "workflow.linked"
    workflow: str
    workflow_run_id: Token
    workflow_conversation_id: Token
