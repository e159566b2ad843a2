"""The tools of `POST /mcp`: each tool is one request to the service."""

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
from banksman.contracts.registry import WorkflowDefinition
from banksman.contracts.wire import JsonObject, Wire
from banksman.gateway.identity_settings import Right
from banksman.gateway.interfaces.mcp import arguments as args
from banksman.gateway.interfaces.mcp.following import Report, followed
from banksman.gateway.operation.bodies import Listing
from banksman.gateway.operation.caller import READ, Caller
from banksman.gateway.runs.bodies import run_body
from banksman.gateway.service.gateway import Gateway

A = TypeVar("A", bound=Wire)
CHATTING: tuple[Right, ...] = ("chat",)
APPROVING: tuple[Right, ...] = ("approve",)

STILL_OPEN = "The run continues. Call read_run with this run_id and wait_s to wait for it."
NEEDS_DECISION = "The run waits for a decision on pending_approvals: see decide_approval."
NEEDS_INPUT = "The run waits for a value: see list_inputs and provide_input."


@dataclass(frozen=True, slots=True)
class Request(Generic[A]):
    """One call of a tool."""

    gateway: Gateway
    caller: Caller
    arguments: A
    report: Report | None
    """Reports progress; None if the client did not request progress."""


@dataclass(frozen=True, slots=True)
class Tool(Generic[A]):
    """One tool of the gateway."""

    name: str
    description: str
    rights: tuple[Right, ...]
    """Each of these rights allows the tool; a caller with none of them is not offered it."""
    arguments: type[A]
    run: Callable[[Request[A]], Awaitable[JsonObject]]
    reads: bool = False
    """Whether the tool is read-only."""
    decides: bool = False
    """Whether the tool decides for a user, so that clients should ask their user first."""


async def start_run(request: Request[args.StartRun]) -> JsonObject:
    """Start a run and wait for it."""
    given, handle = request.arguments, request.gateway.dispatcher.handle
    conversation_id = given.conversation_id
    if conversation_id is None:
        create = ConversationCreate(
            type="conversation.create",
            id=f"{given.request_id}:conversation"[-128:],
            assistant=given.assistant,
            model=given.model,
        )
        created = await handle(request.caller, create, title_from=given.message)
        conversation_id = created.conversation_id or ""
    message = ChatSend(
        type="chat.send", id=given.request_id, conversation_id=conversation_id, content=given.message
    )
    ack = await handle(request.caller, message)
    return await _state(request, ack.run_id or "", given.wait_s, started=True)


async def read_run(request: Request[args.ReadRun]) -> JsonObject:
    """Read a run."""
    return await _state(request, request.arguments.run_id, request.arguments.wait_s)


async def cancel_run(request: Request[args.CancelRun]) -> JsonObject:
    """Cancel a run."""
    given, gateway = request.arguments, request.gateway
    frame = RunCancel(type="run.cancel", id=given.request_id, run_id=given.run_id, reason=given.reason)
    await gateway.dispatcher.handle(request.caller, frame)
    return {"run_id": given.run_id, "next": STILL_OPEN}


async def list_approvals(request: Request[args.Page]) -> JsonObject:
    """List open approval requests."""
    caller = request.caller
    page = await request.gateway.approvals.page(
        caller.tenant, caller.user, limit=args.MAX_PAGE, after=request.arguments.after
    )
    return _json(page)


async def decide_approval(request: Request[args.DecideApproval]) -> JsonObject:
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
    ack = await request.gateway.dispatcher.handle(request.caller, frame)
    return {**_json(ack, "run_id", "outcome", "resolved_by", "already_resolved"), "next": STILL_OPEN}


async def list_inputs(request: Request[args.Page]) -> JsonObject:
    """List the values that workflows wait for."""
    page = await request.gateway.approvals.inputs(
        request.caller.tenant, limit=args.MAX_PAGE, after=request.arguments.after
    )
    return _json(page)


async def provide_input(request: Request[args.ProvideInput]) -> JsonObject:
    """Provide a value. The first value counts."""
    given = request.arguments
    frame = InputReply(type="input.reply", id=given.request_id, request_id=given.input_id, value=given.value)
    ack = await request.gateway.dispatcher.handle(request.caller, frame)
    return {**_json(ack, "run_id", "outcome", "resolved_by", "already_resolved"), "next": STILL_OPEN}


async def list_workflows(request: Request[args.NoArguments]) -> JsonObject:
    """List workflows."""
    found = await request.gateway.workflows.list(request.caller.tenant)
    return _json(Listing[WorkflowDefinition](items=found))


async def start_workflow(request: Request[args.StartWorkflow]) -> JsonObject:
    """Start a workflow and wait for it."""
    given = request.arguments
    frame = WorkflowStart(
        type="workflow.start", id=given.request_id, workflow=given.workflow, parameters=given.parameters
    )
    ack = await request.gateway.dispatcher.handle(request.caller, frame)
    return await _state(request, ack.run_id or "", given.wait_s, started=True)


async def _state(request: Request[Any], run_id: str, wait_s: float, *, started: bool = False) -> JsonObject:
    """Return a run after up to `wait_s`, with the next step for the client if it has not ended."""
    found = await followed(request.gateway, request.caller, run_id, wait_s, request.report, started=started)
    body = _json(run_body(found))
    if found.outcome is not None:
        return body
    following = {"awaiting_approval": NEEDS_DECISION, "awaiting_input": NEEDS_INPUT}
    return {**body, "next": following.get(found.view.status, STILL_OPEN)}


def _json(body: BaseModel, *only: str) -> JsonObject:
    return body.model_dump(mode="json", by_alias=True, exclude_none=True, include=set(only) or None)


_ALL: tuple[Tool[Any], ...] = (
    Tool(
        "start_run",
        "Give a task to the agent of this platform, which works on it with its own tools and workspace. "
        "Returns the outcome, or the state of a run that takes longer than wait_s.",
        CHATTING,
        args.StartRun,
        start_run,
    ),
    Tool(
        "read_run",
        "Read a run: its status, and its outcome once it has ended.",
        READ,
        args.ReadRun,
        read_run,
        reads=True,
    ),
    Tool("cancel_run", "Cancel a run that has not ended.", CHATTING, args.CancelRun, cancel_run),
    Tool(
        "list_approvals",
        "List the calls of tools that wait for a decision, with their complete arguments.",
        READ,
        args.Page,
        list_approvals,
        reads=True,
    ),
    Tool(
        "decide_approval",
        "Approve or reject calls of tools. Decide only what your user has seen and decided.",
        APPROVING,
        args.DecideApproval,
        decide_approval,
        decides=True,
    ),
    Tool(
        "list_inputs",
        "List the values that workflows wait for, with their JSON Schemas.",
        READ,
        args.Page,
        list_inputs,
        reads=True,
    ),
    Tool(
        "provide_input",
        "Provide a value that a workflow waits for.",
        APPROVING,
        args.ProvideInput,
        provide_input,
        decides=True,
    ),
    Tool(
        "list_workflows",
        "List the workflows, with the JSON Schemas of their parameters.",
        READ,
        args.NoArguments,
        list_workflows,
        reads=True,
    ),
    Tool(
        "start_workflow",
        "Start a workflow. Returns the outcome, or the state of a run that takes longer than wait_s.",
        CHATTING,
        args.StartWorkflow,
        start_workflow,
    ),
)
TOOLS = {tool.name: tool for tool in _ALL}


def offered(caller: Caller) -> tuple[Tool[Any], ...]:
    """Return the tools that a caller's rights open."""
    return tuple(tool for tool in _ALL if not caller.rights.isdisjoint(tool.rights))


async def call(
    gateway: Gateway, caller: Caller, tool: Tool[A], arguments: A, report: Report | None
) -> JsonObject:
    """Call a tool.

    Raises:
        CallerMistake: The request is at fault.
        Refused: The request may succeed later.
    """
    caller.need(*tool.rights)
    return await tool.run(Request(gateway, caller, arguments, report))
