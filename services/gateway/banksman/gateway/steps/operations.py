"""The request and the result of one step of a run, rebuilt from the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from fastapi import Query

from banksman.bus.storage.log import StoredCommit
from banksman.contracts import events
from banksman.contracts.approvals import ApprovalRequested, ApprovalResolved, InputRequested, InputResolved
from banksman.contracts.errors import BanksmanError, NotFound
from banksman.contracts.tools import ToolCall
from banksman.contracts.wire import JsonObject, Stored
from banksman.gateway.assistants.prompts import EnhancedPrompts
from banksman.gateway.conversations.views import Views
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.declaration import Operations
from banksman.gateway.operation.parameters import CallerDep, provided
from banksman.gateway.runs.runs import Runs
from banksman.gateway.steps.run_steps import MODEL_STEP, RunStep, steps_of
from banksman.runs.fold import apply_commit, apply_events
from banksman.runs.history import without_old_corrections
from banksman.runs.state import Conversation, Run


class StepDetail(Stored):
    """A step with its request and its result."""

    step: RunStep
    request: JsonObject | None
    """Of a model request: `model`, `system`, `messages`, `tools`, `options` and `protocol`,
    and `problem` if the system prompt cannot be rebuilt. Of a call: its `name` and the executed
    `arguments`, and `requested` if a user edited them. Of an approval request: its `items`."""
    result: JsonObject | None
    """The event that ended the step; None while it is open."""


class StepPage(Stored):
    """A page of the steps of a run, in the order in which they began."""

    items: tuple[RunStep, ...]
    next: int | None
    """`after` of the next page; null at the end."""
    total: int


MAX_STEPS = 500

operations = Operations("runs")


@dataclass(frozen=True, slots=True)
class StepDetails:
    """Rebuilds the steps of runs from the log, which has the messages and the settings of each request."""

    runs: Runs
    views: Views
    prompts: EnhancedPrompts

    @operations.add("step.list", "GET /context/runs/{run_id}/steps")
    async def list_steps(
        self: Service,
        run_id: str,
        caller: CallerDep,
        after: Annotated[int, Query(ge=0, description="Steps to skip.")] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_STEPS)] = MAX_STEPS,
    ) -> StepPage:
        """List the steps of a run: model requests, tool calls, approval requests and waits."""
        steps = steps_of(await self.runs.events(caller.tenant, run_id), run_id)
        page = steps[after : after + limit]
        end = after + len(page)
        return StepPage(items=tuple(page), next=end if end < len(steps) else None, total=len(steps))

    @operations.add("step.read", "GET /context/runs/{run_id}/steps/{step_id}")
    async def read_step(self: Service, run_id: str, step_id: str, caller: CallerDep) -> StepDetail:
        """Read a step with its request and its result.

        The messages of a model request are those of the log. Its system prompt and tools are rebuilt from the
        settings of the run, so they differ if a stored prompt or a registered tool has changed since.
        """
        recorded = await self.runs.events(caller.tenant, run_id)
        step = next((one for one in steps_of(recorded, run_id) if one.step_id == step_id), None)
        if step is None:
            raise NotFound("step", step_id[:64])
        own = [event for event in recorded if event.run_id == run_id]
        match step.kind:
            case "model":
                request = await self._rebuilt(caller, run_id, step)
            case "tool":
                request = _call(own, step_id)
            case _:
                request = _shown(own, step_id, _BEGINS)
        return StepDetail(step=step, request=request, result=_shown(own, step_id, _ENDS))

    async def _rebuilt(self, caller: Caller, run_id: str, step: RunStep) -> JsonObject | None:
        state = await self._before(caller.tenant, run_id, step)
        if state.run is None:
            return None
        return _model_request(state.run, state) | await self._prompt(caller, state.run, state)

    async def _prompt(self, caller: Caller, run: Run, state: Conversation) -> JsonObject:
        try:
            system, tools = await self.prompts.of_run(caller, run, state.history)
        except BanksmanError as error:
            return {"system": None, "tools": [], "problem": str(error)}
        return {
            "system": system,
            "tools": [tool.model_dump(mode="json", exclude_defaults=True) for tool in tools],
        }

    async def _before(self, tenant: str, run_id: str, step: RunStep) -> Conversation:
        """Return the state of the conversation at the time of a step's request."""
        conversation_id = await self.runs.conversation(tenant, run_id)
        state = Conversation(tenant, conversation_id)
        for stored in await self.views.log.read(tenant, conversation_id):
            ends = _end_of(stored, run_id, step.step_id)
            if ends is not None:
                return apply_events(state, stored.commit.events[:ends])
            state = apply_commit(state, stored.stream_seq, stored.commit)
        return state


Service = Annotated[StepDetails, provided(StepDetails)]


def _end_of(stored: StoredCommit, run_id: str, step_id: str) -> int | None:
    """Return the index of the event in a commit that ends a model request; None if the commit has none."""
    for index, event in enumerate(stored.commit.events):
        ended = event.data.type == "run.finished" if step_id == MODEL_STEP else _id_of(event.data) == step_id
        if event.run_id == run_id and ended:
            return index
    return None


def _model_request(run: Run, state: Conversation) -> JsonObject:
    settings = run.settings
    return {
        "model": settings.model,
        "protocol": settings.tool_protocol,
        "options": settings.options.model_dump(mode="json", exclude_none=True),
        # A vendor's state in a message is opaque, and only of use to the vendor.
        "messages": [
            message.model_dump(mode="json", exclude={"provider_state"}, exclude_defaults=True)
            | {"role": message.role}
            for message in without_old_corrections(state.history, run.message.message_id)
        ],
    }


def _call(recorded: Sequence[events.Event], call_id: str) -> JsonObject | None:
    call: ToolCall | None = None
    for event in recorded:
        match event.data:
            case events.ToolCallRequested(call=requested) if requested.id == call_id:
                call = requested
            case ApprovalResolved(decisions=decisions) if call is not None:
                for one in decisions:
                    if one.tool_call_id == call_id and one.arguments is not None:
                        return {"name": call.name, "arguments": one.arguments, "requested": call.arguments}
            case _:
                pass
    return None if call is None else {"name": call.name, "arguments": call.arguments}


_BEGINS = (ApprovalRequested, InputRequested)
_ENDS = (
    events.MessageCompleted,
    events.ProtocolRetry,
    events.HistoryCompacted,
    events.ToolCallCompleted,
    ApprovalResolved,
    InputResolved,
)


def _shown(
    recorded: Sequence[events.Event], step_id: str, kinds: tuple[type[events.EventBody], ...]
) -> JsonObject | None:
    """Return the first event of a step that has one of the types, as clients read it."""
    hidden = {"type": True, "provider_state": True, "result": {"output_key", "output_ref"}}
    for event in recorded:
        if isinstance(event.data, kinds) and _id_of(event.data) == step_id:
            return event.data.model_dump(mode="json", by_alias=True, exclude=hidden)
    return None


def _id_of(data: events.EventBody) -> str | None:
    match data:
        case events.MessageCompleted() | events.ProtocolRetry() | events.HistoryCompacted():
            return data.message_id
        case events.ToolCallCompleted():
            return data.result.tool_call_id
        case ApprovalRequested() | ApprovalResolved():
            return data.approval_id
        case InputRequested() | InputResolved():
            return data.request_id
        case _:
            return None


async def build(base: Foundation) -> None:
    services = base.services
    services.add(StepDetails(services[Runs], services[Views], services[EnhancedPrompts]))


FEATURE = Feature(operations, build)
