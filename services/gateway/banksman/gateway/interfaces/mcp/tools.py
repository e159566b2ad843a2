"""The tools of `POST /mcp`: each is one operation of the gateway, or two."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args, get_type_hints

from pydantic import BaseModel, Field

from banksman.contracts import frames
from banksman.contracts.approvals import ItemDecision
from banksman.contracts.assistants import OnReject
from banksman.contracts.messages import BY_AGENT
from banksman.contracts.wire import JsonObject, JsonValue, Token, Wire
from banksman.gateway.interfaces.mcp.following import StepReport, reporting
from banksman.gateway.live.feeds import Feeds
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.operation.parameters import creation_id, unrepeated_id
from banksman.gateway.runs.bodies import EndedRun, Run

A = TypeVar("A", bound=Wire)

MAX_WAIT_S = 45
"""Maximum seconds of a wait: clients abandon a call after 60 seconds by default, and miss its result."""
DEFAULT_WAIT_S = 20
MAX_PAGE = 100

WaitS = Annotated[float, Field(ge=0, le=MAX_WAIT_S)]
RunId = Annotated[str, Field(min_length=1, max_length=256)]

STILL_OPEN = "The run continues. Call read_run with this run_id and wait_s to wait for it."
NEEDS_DECISION = "The run waits for a decision on pending_approvals: see decide_approval."
NEEDS_INPUT = "The run waits for a value: see list_inputs and provide_input."


class _ChangeArguments(Wire):
    """The `id` of a request that changes state; every such request has one."""

    request_id: frames.FrameId = Field(default_factory=unrepeated_id)
    """Identifies the request for 24 hours: a repeat with the same id returns the first result and starts
    nothing again. Leave it out for a new request."""


class StartRunArguments(_ChangeArguments):
    message: str = Field(min_length=1, max_length=200_000)
    """The task for the agent."""
    conversation_id: Token | None = None
    """A conversation to continue; leave it out to begin one."""
    assistant: Token = "default"
    """The assistant of a new conversation."""
    model: str | None = Field(default=None, max_length=200)
    """`provider:model` of a new conversation; leave it out for the assistant's."""
    wait_s: WaitS = DEFAULT_WAIT_S
    """Seconds to wait for the outcome. A longer run continues: follow it with `read_run`."""


class ReadRunArguments(Wire):
    run_id: RunId
    wait_s: WaitS = 0
    """Seconds to wait until the run ends or needs a decision."""


class CancelRunArguments(_ChangeArguments):
    run_id: RunId
    reason: str | None = Field(default=None, max_length=2000)


class PageArguments(Wire):
    """Arguments of `list_approvals` and `list_inputs`."""

    after: int = Field(default=0, ge=0, le=2**63 - 2)
    """`next` of the previous page."""


class DecideApprovalArguments(_ChangeArguments):
    approval_id: Token
    decision: Literal["approve", "reject"] | None = None
    """The decision on all calls of the request; leave it out if `decisions` is given."""
    decisions: tuple[ItemDecision, ...] = Field(default=(), max_length=1000)
    """One decision for each call, which may have edited arguments."""
    on_reject: OnReject | None = None
    """What each rejection does to the run: end it (abort), or let the agent read it (feedback)."""
    digests: tuple[Annotated[str, Field(max_length=64)], ...] = Field(default=(), max_length=1000)
    """The digests of the calls as they were shown; a request with other calls is then refused."""


class ProvideInputArguments(_ChangeArguments):
    input_id: Token
    """`request_id` of the open request, as `list_inputs` shows it."""
    value: JsonValue = None
    """A value that fits the request's schema."""
    decline: bool = False
    """Whether the user declines to provide a value."""


class NoArguments(Wire):
    """A tool without arguments."""


class StartWorkflowArguments(_ChangeArguments):
    workflow: Token
    """The name, as `list_workflows` shows it."""
    parameters: JsonObject = Field(default_factory=dict)
    """The values of its form."""
    wait_s: WaitS = DEFAULT_WAIT_S
    """Seconds to wait for the outcome."""


@dataclass(frozen=True, slots=True)
class Platform:
    dispatcher: Dispatcher
    feeds: Feeds
    caller: Caller

    async def handle(self, frame: BaseModel, **known: Any) -> Any:
        return await self.dispatcher.handle(self.caller, frame, **known)

    async def request(self, name: str, /, **arguments: Any) -> Any:
        return await self.dispatcher.request(name, self.caller, **arguments)

    def one_start(self) -> AbstractAsyncContextManager[None]:
        return self.dispatcher.one_start(self.caller)

    def offers(self, tool: ServerTool[Any]) -> bool:
        return self.dispatcher.allows(self.caller, tool.operation)


@dataclass(frozen=True, slots=True)
class ToolCallRequest(Generic[A]):
    platform: Platform
    arguments: A
    report: StepReport | None
    """Reports progress; None if the client did not request progress."""


ToolFunction = Callable[[ToolCallRequest[A]], Awaitable[JsonObject]]


@dataclass(frozen=True, slots=True)
class ServerTool(Generic[A]):
    name: str
    description: str
    operation: str | type[BaseModel]
    """Its operation, by name or frame. Callers who may not request it are not offered the tool."""
    arguments: type[A]
    run: ToolFunction[A]
    reads: bool
    """Whether the tool is read-only."""
    decides: bool
    """Whether the tool decides for a user, so that clients should ask their user first."""


TOOLS: dict[str, ServerTool[Any]] = {}


def tool(
    operation: str | type[BaseModel], *, reads: bool = False, decides: bool = False
) -> Callable[[ToolFunction[A]], ToolFunction[A]]:
    """Offer the decorated function as a tool, with its docstring as the description."""

    def offer(run: ToolFunction[A]) -> ToolFunction[A]:
        description = " ".join((run.__doc__ or "").split())
        arguments: type[A] = get_args(get_type_hints(run)["request"])[0]
        TOOLS[run.__name__] = ServerTool(run.__name__, description, operation, arguments, run, reads, decides)
        return run

    return offer


@tool(frames.ChatSend)
async def start_run(request: ToolCallRequest[StartRunArguments]) -> JsonObject:
    """Give a task to the agent of this platform, which works on it with its own tools and workspace.

    Returns the outcome, or the state of a run that takes longer than wait_s.
    """
    async with request.platform.one_start():
        ack = await _start(request.arguments, request.platform)
    return await _state(request, ack.run_id or "", request.arguments.wait_s, started=True)


async def _start(given: StartRunArguments, platform: Platform) -> frames.Ack:
    conversation_id = given.conversation_id
    if conversation_id is None:
        create = frames.ConversationCreate(
            type="conversation.create",
            id=creation_id(given.request_id),
            assistant=given.assistant,
            model=given.model,
        )
        created = await platform.handle(create, title_from=given.message)
        conversation_id = created.conversation_id or ""
    message = frames.ChatSend(
        type="chat.send",
        id=given.request_id,
        conversation_id=conversation_id,
        content=given.message,
        provenance=BY_AGENT,
    )
    ack: frames.Ack = await platform.handle(message)
    return ack


@tool("run.read", reads=True)
async def read_run(request: ToolCallRequest[ReadRunArguments]) -> JsonObject:
    """Read a run: its status, and its outcome once it has ended."""
    return await _state(request, request.arguments.run_id, request.arguments.wait_s)


@tool(frames.RunCancel)
async def cancel_run(request: ToolCallRequest[CancelRunArguments]) -> JsonObject:
    """Cancel a run that has not ended."""
    given = request.arguments
    frame = frames.RunCancel(type="run.cancel", id=given.request_id, run_id=given.run_id, reason=given.reason)
    await request.platform.handle(frame)
    return {"run_id": given.run_id, "next": STILL_OPEN}


@tool("approval.list", reads=True)
async def list_approvals(request: ToolCallRequest[PageArguments]) -> JsonObject:
    """List the calls of tools that wait for a decision, with their complete arguments."""
    after = request.arguments.after
    return _json(await request.platform.request("approval.list", limit=MAX_PAGE, after=after))


@tool(frames.ApprovalDecision, decides=True)
async def decide_approval(request: ToolCallRequest[DecideApprovalArguments]) -> JsonObject:
    """Approve or reject calls of tools. Decide only what your user has seen and decided."""
    given = request.arguments
    frame = frames.ApprovalDecision(
        type="approval.reply",
        id=given.request_id,
        approval_id=given.approval_id,
        all=given.decision,
        decisions=given.decisions,
        on_reject=given.on_reject,
        digests=given.digests,
    )
    return await _decided(request, frame)


@tool("input.list", reads=True)
async def list_inputs(request: ToolCallRequest[PageArguments]) -> JsonObject:
    """List the values that workflows and servers of tools wait for, with their JSON Schemas."""
    after = request.arguments.after
    return _json(await request.platform.request("input.list", limit=MAX_PAGE, after=after))


@tool(frames.InputReply, decides=True)
async def provide_input(request: ToolCallRequest[ProvideInputArguments]) -> JsonObject:
    """Provide a value that a workflow or the server of a tool waits for, or decline to."""
    given = request.arguments
    frame = frames.InputReply(
        type="input.reply",
        id=given.request_id,
        request_id=given.input_id,
        value=given.value,
        decline=given.decline,
    )
    return await _decided(request, frame)


@tool("workflow.list", reads=True)
async def list_workflows(request: ToolCallRequest[NoArguments]) -> JsonObject:
    """List the workflows, with the JSON Schemas of their parameters."""
    return _json(await request.platform.request("workflow.list"))


@tool(frames.WorkflowStart)
async def start_workflow(request: ToolCallRequest[StartWorkflowArguments]) -> JsonObject:
    """Start a workflow. Returns the outcome, or the state of a run that takes longer than wait_s."""
    given = request.arguments
    frame = frames.WorkflowStart(
        type="workflow.start",
        id=given.request_id,
        workflow=given.workflow,
        parameters=given.parameters,
        provenance=BY_AGENT,
    )
    ack = await request.platform.handle(frame)
    return await _state(request, ack.run_id or "", given.wait_s, started=True)


async def _decided(request: ToolCallRequest[Any], frame: BaseModel) -> JsonObject:
    ack = await request.platform.handle(frame)
    return {**_json(ack, "run_id", "outcome", "resolved_by", "already_resolved"), "next": STILL_OPEN}


async def _state(
    request: ToolCallRequest[Any], run_id: str, wait_s: float, *, started: bool = False
) -> JsonObject:
    """Return a run once it has ended or needs a decision, or after `wait_s`, with the client's next step."""
    platform = request.platform
    if wait_s and not started:
        # An unknown run fails at once.
        await platform.request("run.read", run_id=run_id)
    async with reporting(platform.feeds, platform.caller, run_id, request.report if wait_s else None):
        found: Run = await platform.request("run.read", run_id=run_id, wait_s=wait_s, or_parked=True)
    body = _json(found)
    if isinstance(found, EndedRun):
        return body
    following = {"awaiting_approval": NEEDS_DECISION, "awaiting_input": NEEDS_INPUT}
    return {**body, "next": following.get(found.status, STILL_OPEN)}


def _json(body: BaseModel, *only: str) -> JsonObject:
    return body.model_dump(mode="json", by_alias=True, exclude_none=True, include=set(only) or None)
