"""The tools of `POST /mcp`: each tool is one operation of the gateway, or two."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel

from banksman.contracts.frames import (
    ApprovalDecision,
    ChatSend,
    ConversationCreate,
    InputReply,
    RunCancel,
    WorkflowStart,
)
from banksman.contracts.wire import JsonObject, Wire
from banksman.gateway.interfaces.mcp import arguments as args
from banksman.gateway.interfaces.mcp.following import RunReader, StepReport
from banksman.gateway.live.feeds import Feeds
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.operation.parameters import creation_id
from banksman.gateway.runs.bodies import EndedRun

A = TypeVar("A", bound=Wire)

STILL_OPEN = "The run continues. Call read_run with this run_id and wait_s to wait for it."
NEEDS_DECISION = "The run waits for a decision on pending_approvals: see decide_approval."
NEEDS_INPUT = "The run waits for a value: see list_inputs and provide_input."


@dataclass(frozen=True, slots=True)
class Platform:
    """The gateway as one client of the Model Context Protocol uses it."""

    dispatcher: Dispatcher
    feeds: Feeds
    caller: Caller

    async def handle(self, frame: BaseModel, **known: Any) -> Any:
        """Handle a frame of the client; arguments and errors as `Dispatcher.handle`."""
        return await self.dispatcher.handle(self.caller, frame, **known)

    async def request(self, name: str, /, **arguments: Any) -> Any:
        """Perform an operation; arguments and errors as `Dispatcher.request`."""
        return await self.dispatcher.request(name, self.caller, **arguments)

    def offers(self, tool: ServerTool[Any]) -> bool:
        """Return whether the client's rights open a tool."""
        return self.dispatcher.allows(self.caller, tool.operation)


@dataclass(frozen=True, slots=True)
class ToolCallRequest(Generic[A]):
    """One call of a tool."""

    platform: Platform
    arguments: A
    report: StepReport | None
    """Reports progress; None if the client did not request progress."""


@dataclass(frozen=True, slots=True)
class ServerTool(Generic[A]):
    """One tool of the gateway."""

    name: str
    description: str
    operation: str | type[BaseModel]
    """Its operation, by name or frame. Callers who may not request it are not offered the tool."""
    arguments: type[A]
    run: Callable[[ToolCallRequest[A]], Awaitable[JsonObject]]
    reads: bool = False
    """Whether the tool is read-only."""
    decides: bool = False
    """Whether the tool decides for a user, so that clients should ask their user first."""


async def start_run(request: ToolCallRequest[args.StartRunArguments]) -> JsonObject:
    given, platform = request.arguments, request.platform
    conversation_id = given.conversation_id
    if conversation_id is None:
        create = ConversationCreate(
            type="conversation.create",
            id=creation_id(given.request_id),
            assistant=given.assistant,
            model=given.model,
        )
        created = await platform.handle(create, title_from=given.message)
        conversation_id = created.conversation_id or ""
    message = ChatSend(
        type="chat.send", id=given.request_id, conversation_id=conversation_id, content=given.message
    )
    ack = await platform.handle(message)
    return await _state(request, ack.run_id or "", given.wait_s, started=True)


async def read_run(request: ToolCallRequest[args.ReadRunArguments]) -> JsonObject:
    return await _state(request, request.arguments.run_id, request.arguments.wait_s)


async def cancel_run(request: ToolCallRequest[args.CancelRunArguments]) -> JsonObject:
    given = request.arguments
    frame = RunCancel(type="run.cancel", id=given.request_id, run_id=given.run_id, reason=given.reason)
    await request.platform.handle(frame)
    return {"run_id": given.run_id, "next": STILL_OPEN}


async def list_approvals(request: ToolCallRequest[args.PageArguments]) -> JsonObject:
    after = request.arguments.after
    return _json(await request.platform.request("approval.list", limit=args.MAX_PAGE, after=after))


async def decide_approval(request: ToolCallRequest[args.DecideApprovalArguments]) -> JsonObject:
    """Decide an approval request. The first decision counts."""
    given = request.arguments
    frame = ApprovalDecision(
        type="approval.reply",
        id=given.request_id,
        approval_id=given.approval_id,
        all=given.decision,
        decisions=given.decisions,
        digests=given.digests,
    )
    ack = await request.platform.handle(frame)
    return {**_json(ack, "run_id", "outcome", "resolved_by", "already_resolved"), "next": STILL_OPEN}


async def list_inputs(request: ToolCallRequest[args.PageArguments]) -> JsonObject:
    after = request.arguments.after
    return _json(await request.platform.request("input.list", limit=args.MAX_PAGE, after=after))


async def provide_input(request: ToolCallRequest[args.ProvideInputArguments]) -> JsonObject:
    """Provide a value. The first value counts."""
    given = request.arguments
    frame = InputReply(type="input.reply", id=given.request_id, request_id=given.input_id, value=given.value)
    ack = await request.platform.handle(frame)
    return {**_json(ack, "run_id", "outcome", "resolved_by", "already_resolved"), "next": STILL_OPEN}


async def list_workflows(request: ToolCallRequest[args.NoArguments]) -> JsonObject:
    return _json(await request.platform.request("workflow.list"))


async def start_workflow(request: ToolCallRequest[args.StartWorkflowArguments]) -> JsonObject:
    given = request.arguments
    frame = WorkflowStart(
        type="workflow.start", id=given.request_id, workflow=given.workflow, parameters=given.parameters
    )
    ack = await request.platform.handle(frame)
    return await _state(request, ack.run_id or "", given.wait_s, started=True)


async def _state(
    request: ToolCallRequest[Any], run_id: str, wait_s: float, *, started: bool = False
) -> JsonObject:
    """Return a run after up to `wait_s`, with the next step for the client if it has not ended."""
    platform = request.platform
    reader = RunReader(platform.dispatcher, platform.feeds, platform.caller, run_id)
    found = await reader.read(wait_s, request.report, started=started)
    body = _json(found)
    if isinstance(found, EndedRun):
        return body
    following = {"awaiting_approval": NEEDS_DECISION, "awaiting_input": NEEDS_INPUT}
    return {**body, "next": following.get(found.status, STILL_OPEN)}


def _json(body: BaseModel, *only: str) -> JsonObject:
    return body.model_dump(mode="json", by_alias=True, exclude_none=True, include=set(only) or None)


_ALL: tuple[ServerTool[Any], ...] = (
    ServerTool(
        "start_run",
        "Give a task to the agent of this platform, which works on it with its own tools and workspace. "
        "Returns the outcome, or the state of a run that takes longer than wait_s.",
        ChatSend,
        args.StartRunArguments,
        start_run,
    ),
    ServerTool(
        "read_run",
        "Read a run: its status, and its outcome once it has ended.",
        "run.read",
        args.ReadRunArguments,
        read_run,
        reads=True,
    ),
    ServerTool(
        "cancel_run", "Cancel a run that has not ended.", RunCancel, args.CancelRunArguments, cancel_run
    ),
    ServerTool(
        "list_approvals",
        "List the calls of tools that wait for a decision, with their complete arguments.",
        "approval.list",
        args.PageArguments,
        list_approvals,
        reads=True,
    ),
    ServerTool(
        "decide_approval",
        "Approve or reject calls of tools. Decide only what your user has seen and decided.",
        ApprovalDecision,
        args.DecideApprovalArguments,
        decide_approval,
        decides=True,
    ),
    ServerTool(
        "list_inputs",
        "List the values that workflows wait for, with their JSON Schemas.",
        "input.list",
        args.PageArguments,
        list_inputs,
        reads=True,
    ),
    ServerTool(
        "provide_input",
        "Provide a value that a workflow waits for.",
        InputReply,
        args.ProvideInputArguments,
        provide_input,
        decides=True,
    ),
    ServerTool(
        "list_workflows",
        "List the workflows, with the JSON Schemas of their parameters.",
        "workflow.list",
        args.NoArguments,
        list_workflows,
        reads=True,
    ),
    ServerTool(
        "start_workflow",
        "Start a workflow. Returns the outcome, or the state of a run that takes longer than wait_s.",
        WorkflowStart,
        args.StartWorkflowArguments,
        start_workflow,
    ),
)
TOOLS = {tool.name: tool for tool in _ALL}
