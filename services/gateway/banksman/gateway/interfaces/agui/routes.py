"""`POST /agui`: a run of an agent, its events as server-sent events of AG-UI.

A thread is a conversation. A run that waits for a user is several runs of AG-UI: each ends with an interrupt,
and the next one begins with the response to it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Query, Response

from banksman.contracts.approvals import ApprovalRequested, InputRequested
from banksman.contracts.errors import BadInput, Conflict, NotFound
from banksman.contracts.events import Event
from banksman.contracts.frames import ApprovalDecision, ChatSend, ConversationCreate, Detail, InputReply
from banksman.contracts.ids import digest, is_token
from banksman.contracts.messages import Provenance, typed_texts
from banksman.contracts.wire import Token
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.conversations.view import ConversationView
from banksman.gateway.feature import Feature
from banksman.gateway.interfaces.agui.mapping import AguiEvent, EventMapper
from banksman.gateway.interfaces.agui.messages import (
    AguiMessage,
    InputMessage,
    RunInput,
    UserTurn,
    answer,
    approval_interrupts,
    as_sent,
    content_of,
    input_interrupt,
    messages_of,
    user_turn,
)
from banksman.gateway.live.followed_runs import FollowedRun, FollowedRuns, OpenRequests, run_headers
from banksman.gateway.operation.caller import READ, Caller
from banksman.gateway.operation.declaration import BodyLimit, Operations
from banksman.gateway.operation.parameters import CallerDep, StrictBody, provided
from banksman.gateway.operation.streaming import SSE_HEADERS, StreamedResponse, kept_alive, sse_event
from banksman.gateway.runs.idempotency import DerivedIds

NO_TOOLS = "The application's tools are not offered to the model: the server calls its own."
NO_MEDIA = "Parts of the message that are neither text nor an image of at most 256 KiB are left out: {}."


@dataclass(slots=True)
class AguiRun:
    mapper: EventMapper
    run: FollowedRun | None = None
    """The run to follow; None if the thread has none."""
    messages: list[AguiMessage] | None = None
    """The messages that replace those of the client; None replaces none."""
    warnings: tuple[str, ...] = ()
    interrupts: tuple[dict[str, Any], ...] = ()
    """The open interrupts of a loaded thread."""
    answers: bool = False
    """Whether its input responds to interrupts."""
    cancels: bool = False
    """Whether a client that disconnects cancels the run."""

    async def cancel_abandoned(self) -> None:
        """Cancel the run after its client has disconnected, except a run that waits for a user."""
        if self.run is None or self.mapper.ended or not self.cancels:
            return
        if self.answers or not await self.run.waits():
            await self.run.cancel()


@dataclass(frozen=True, slots=True)
class Threads:
    followed: FollowedRuns
    conversations: Conversations
    caller: Caller
    given: RunInput
    assistant: str
    detail: Detail

    async def open(self) -> AguiRun:
        """Respond to interrupts, send a message, or with neither load the thread."""
        options = self.given.options
        conversation_id = await self._conversation()
        if self.given.resume:
            found = await self._resumed(conversation_id)
        elif self.given.messages:
            found = await self._messaged(conversation_id)
        else:
            return await self._loaded(conversation_id)
        found.cancels = "chat" in self.caller.rights and options.on_disconnect == "cancel"
        if self.given.tools:
            found.warnings += (NO_TOOLS,)
        return found

    async def _conversation(self) -> str:
        """Return the id of the thread's conversation: the thread id itself, or an id derived from it."""
        thread_id, limited = self.given.thread_id, self.conversations.limited
        if is_token(thread_id) and not limited.hides(self.caller, thread_id):
            if await self._exists(thread_id):
                return thread_id
        derived = DerivedIds(f"agui/{thread_id}").new("c")
        if limited.hides(self.caller, derived):
            raise NotFound("thread", thread_id)
        return derived

    async def _exists(self, conversation_id: str) -> bool:
        return await _is_found(self.conversations.get(self.caller.tenant, conversation_id))

    async def _messaged(self, conversation_id: str) -> AguiRun:
        turn = user_turn(self.given.messages)
        view = await self._view(conversation_id)
        ids = DerivedIds(f"agui/{digest(self.given.run_id.encode())}")
        run_id = ids.new_run(conversation_id)
        followed = turn.end < len(self.given.messages)
        known = view.runs.get(run_id)
        if known is not None:
            run = await self._follow(conversation_id, run_id, known.first_seq - 1)
        elif followed and not await _is_found(
            self.followed.dispatcher.request("run.read", self.caller, run_id=run_id)
        ):
            role = self.given.messages[-1].role
            raise BadInput("messages", role, "a last message with the role `user`")
        else:
            _check_answered(view)
            run = await self._started(conversation_id, turn, ids, new=view.last_seq == 0)
        found = AguiRun(self._mapper(conversation_id, run_id, view, "queued"), run)
        if followed:
            # The client has messages of the run already, which the events would repeat.
            found.messages = [as_sent(message) for message in self.given.messages[: turn.end]]
        if turn.left_out:
            found.warnings += (NO_MEDIA.format(turn.left_out),)
        return found

    async def _started(
        self, conversation_id: str, turn: UserTurn, ids: DerivedIds, *, new: bool
    ) -> FollowedRun:
        async with self.followed.dispatcher.one_start(self.caller):
            return await self._sent(conversation_id, turn, ids, new=new)

    async def _sent(self, conversation_id: str, turn: UserTurn, ids: DerivedIds, *, new: bool) -> FollowedRun:
        options = self.given.options
        content = content_of(self.given, turn, new=new)
        if new and not await self._exists(conversation_id):
            creation = ConversationCreate(type="conversation.create", id="agui", assistant=self.assistant)
            derived = DerivedIds(f"agui/{self.given.thread_id}")
            await self.followed.dispatcher.handle(
                self.caller, creation, requests=derived, title_from=turn.parts
            )
        message = ChatSend(
            type="chat.send",
            id="agui",
            conversation_id=conversation_id,
            content=content,
            overrides=options.overrides,
            variables=options.variables,
            provenance=Provenance.partly("client", typed_texts(turn.parts)),
        )
        return await self.followed.start(self.caller, message, self.detail, requests=ids)

    async def _resumed(self, conversation_id: str) -> AguiRun:
        view = await self._view(conversation_id)
        request_id = f"agui-{digest(self.given.run_id.encode())[:32]}"
        frame = answer(self.given.resume or (), request_id, view).model_copy(
            update={"conversation_id": conversation_id}
        )
        asked = _asked(frame)
        run_id = asked.rpartition("-")[0]
        after_seq = await self._position(conversation_id, view, run_id, asked)
        run = await self._follow(conversation_id, run_id, after_seq)
        try:
            ack = await self.followed.dispatcher.handle(self.caller, frame)
        except BaseException:
            await run.feed.close()
            raise
        found = AguiRun(self._mapper(conversation_id, run_id, view, "running"), run, answers=True)
        if ack.already_resolved:
            found.warnings += (f"An earlier decision counts: {ack.outcome}, by {ack.resolved_by}.",)
        found.messages = _cut_after_calls(self.given.messages, frame)
        return found

    async def _position(self, conversation_id: str, view: ConversationView, run_id: str, asked: str) -> int:
        """Return the number of the event after which the run continues: the request's, if it is resolved."""
        if asked in view.approvals or asked in view.inputs:
            return view.last_seq
        known = view.runs.get(run_id)
        if known is not None:
            stored = await self.followed.views.events(
                self.caller.tenant, conversation_id, after_seq=known.first_seq - 1
            )
            for event in stored.events:
                if _asks(event, asked):
                    return event.seq
        raise NotFound("interrupt", asked)

    async def _loaded(self, conversation_id: str) -> AguiRun:
        """Return the thread as the server has it, and follow its open run."""
        tenant = self.caller.tenant
        view = await self._view(conversation_id)
        stored = await self.followed.views.events(tenant, conversation_id, after_seq=0)
        open_run = view.open_run
        found = AguiRun(
            self._mapper(conversation_id, open_run and open_run.run_id, view, view.status),
            messages=messages_of(stored.events),
            interrupts=_interrupts(view),
        )
        if open_run is not None and not found.interrupts:
            found.run = await self._follow(conversation_id, open_run.run_id, stored.head_seq)
        return found

    async def _view(self, conversation_id: str) -> ConversationView:
        view = await self.followed.views.as_sent(self.caller.tenant, conversation_id)
        if view.deleted:
            raise NotFound("thread", self.given.thread_id)
        return view

    async def _follow(self, conversation_id: str, run_id: str, after_seq: int) -> FollowedRun:
        return await self.followed.open_run(self.caller, conversation_id, run_id, after_seq, self.detail)

    def _mapper(
        self, conversation_id: str, run_id: str | None, view: ConversationView, status: str
    ) -> EventMapper:
        state = {} if self.given.state is None else self.given.state
        return EventMapper(
            self.given.thread_id,
            self.given.run_id,
            conversation_id,
            run_id,
            state if isinstance(state, dict) else None,
            OpenRequests.of(view),
            status=status,
            whole_run=status == "queued",
        )


async def _is_found(reading: Awaitable[object]) -> bool:
    try:
        await reading
    except NotFound:
        return False
    return True


def _check_answered(view: ConversationView) -> None:
    """Refuse a message to a thread that waits for a user: AG-UI requires the responses first."""
    if waiting := [str(one["id"]) for one in _interrupts(view)]:
        raise Conflict(f"the thread waits for responses in `resume` to {', '.join(waiting)}")


def _interrupts(view: ConversationView) -> tuple[dict[str, Any], ...]:
    approvals = (one.requested.model_dump(mode="json") for one in view.approvals.values())
    inputs = (one.requested.model_dump(mode="json", by_alias=True) for one in view.inputs.values())
    return (
        *(interrupt for data in approvals for interrupt in approval_interrupts(data)),
        *(input_interrupt(data) for data in inputs),
    )


def _asked(frame: ApprovalDecision | InputReply) -> str:
    return frame.approval_id if isinstance(frame, ApprovalDecision) else frame.request_id


def _asks(event: Event, asked: str) -> bool:
    match event.data:
        case ApprovalRequested(approval_id=id) | InputRequested(request_id=id):
            return id == asked
        case _:
            return False


def _cut_after_calls(
    messages: Iterable[InputMessage], frame: ApprovalDecision | InputReply
) -> list[AguiMessage] | None:
    """Return the client's messages up to the one with the decided calls; None if no message follows.

    Later messages come from an earlier request with the same responses, whose events are sent again.
    """
    decided = (
        {one.tool_call_id for one in frame.decisions} if isinstance(frame, ApprovalDecision) else set[str]()
    )
    kept = list(messages)
    ends = [index for index, message in enumerate(kept, 1) if decided & message.call_ids]
    if not ends or ends[-1] == len(kept):
        return None
    return [as_sent(message) for message in kept[: ends[-1]]]


STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The events of the run",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}

operations = Operations("agui", right=READ)


@operations.add(
    "agui.run",
    "POST /agui",
    not_over_nats="AG-UI is a protocol over HTTP",
    body=BodyLimit.LARGE,
    response_class=Response,
    responses=STREAM,
)
async def run_agent(
    body: StrictBody[RunInput],
    followed: Annotated[FollowedRuns, provided(FollowedRuns)],
    conversations: Annotated[Conversations, provided(Conversations)],
    caller: CallerDep,
    assistant: Annotated[Token, Query(description="The assistant of a thread that begins.")] = "default",
    detail: Annotated[
        Literal["steps", "full"], Query(description="`full` also sends reasoning and running output.")
    ] = "steps",
) -> StreamedResponse:
    """Run the agent by the Agent User Interaction protocol, AG-UI 1.0 (R26).

    Each interrupt is one call that waits for a decision; the response is `{approved, arguments?, reason?}`. A
    repeated `runId` continues with the run that the first request started. A client that disconnects cancels
    the run, unless `forwardedProps.banksman.on_disconnect` is `continue`.
    """
    found = await Threads(followed, conversations, caller, body, assistant, detail).open()
    mapper = found.mapper
    named = {} if mapper.run_id is None else run_headers(mapper.conversation_id, mapper.run_id)
    return StreamedResponse(
        kept_alive(_encoded(found)),
        headers={**SSE_HEADERS, **named},
        on_disconnect=found.cancel_abandoned,
        on_end=None if found.run is None else found.run.feed.close,
    )


async def _encoded(found: AguiRun) -> AsyncIterator[bytes]:
    async for event in _events(found):
        yield sse_event(event)


async def _events(found: AguiRun) -> AsyncIterator[AguiEvent]:
    mapper = found.mapper
    for event in mapper.begin(found.messages, found.warnings):
        yield event
    if found.run is None:
        for event in mapper.interrupted(found.interrupts) if found.interrupts else mapper.idle():
            yield event
        return
    async with aclosing(found.run.frames()) as frames:
        async for frame in frames:
            for event in mapper.events(json.loads(frame)):
                yield event
            if mapper.ended:
                return


FEATURE = Feature(operations)
