"""Start the runs of messages with their settings, and steer open runs."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial

from fastapi import Request, Response

from banksman.bus.publish import RunQueue
from banksman.contracts.assistants import RunSettings
from banksman.contracts.errors import BadInput, NotFound, Refused
from banksman.contracts.frames import Ack, ChatSend, Detail, RunCancel
from banksman.contracts.ids import conversation_of
from banksman.contracts.messages import Content, FilePart, Part, Provenance, TextPart, UserMessage, text_of
from banksman.contracts.work import CancelRun, StartRun, SteerRun
from banksman.gateway.assistants.assistants import RESPONSE_SCHEMA
from banksman.gateway.assistants.policies import GovernedAssistants
from banksman.gateway.assistants.run_settings import ModelNames, resolve_settings
from banksman.gateway.conversations.changes import ConversationChanges
from banksman.gateway.conversations.conversations import Conversations, CreatedConversations
from banksman.gateway.conversations.views import Views
from banksman.gateway.identity.instructions import Instructions
from banksman.gateway.live.followed_runs import FollowedRun, FollowedRuns
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.parameters import creation_id
from banksman.gateway.operation.streaming import StreamedResponse
from banksman.gateway.quotas.backlog import Backlog
from banksman.gateway.runs import idempotency
from banksman.gateway.runs.bodies import AcceptedRun, EndedRun, NewChat, Run, run_body
from banksman.gateway.runs.runs import Runs
from banksman.runs.history import Paths
from banksman.runs.schema_checks.checker import SchemaChecker
from banksman.runtime.failpoints import reach
from banksman.runtime.tracing import current, valid

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunStarts:
    views: Views
    conversations: Conversations
    created: CreatedConversations
    assistants: GovernedAssistants
    queue: RunQueue
    backlog: Backlog
    models: ModelNames
    instructions: Instructions
    schemas: SchemaChecker

    async def send(
        self, caller: Caller, request: ChatSend, requests: idempotency.RequestIds, *, compact: bool = False
    ) -> Ack:
        """Store a message: it starts a run, or steers the open one. Raises as `Dispatcher.handle`.

        With `compact`, the run only compacts the history.
        """
        async with self.backlog.starts.place(caller.tenant):
            return await self._send(caller, request, requests, compact)

    async def _send(
        self, caller: Caller, request: ChatSend, requests: idempotency.RequestIds, compact: bool
    ) -> Ack:
        idempotency.check_content(request.content)
        created = self.created.take(caller.tenant, request.conversation_id)
        record = created or await self.conversations.get(caller.tenant, request.conversation_id)
        assistant = await self.assistants.in_use(caller.tenant, record.assistant)
        settings = resolve_settings(
            assistant, record.settings, request.overrides, request.variables, self.models.of(caller.tenant)
        )
        if (schema := settings.options.response_schema) is not None:
            await self.schemas.check_schema(caller.tenant, schema, RESPONSE_SCHEMA)
        content = _with_attachments(request.content, request.attachments)
        if created is None:
            await self.views.check_complete(caller.tenant, request.conversation_id)
        provenance = await self._provenance(caller, request)
        own = {
            "branch": request.branch,
            "compact": compact,
            "instructions": self.instructions.of(caller),
            "traceparent": valid(request.traceparent) or current(),
        }
        settings = settings.model_copy(update=own)
        new_run = requests.new_run(request.conversation_id)
        steered = await self._steered_run(caller, request)
        queued = self.views.known(caller.tenant, request.conversation_id).queued
        check_queue = partial(self.backlog.check_conversation, caller.tenant, request.conversation_id, queued)
        if steered is None:
            await self.backlog.check(caller.tenant, _size(content, settings))
            if queued:
                await check_queue()
        else:
            await self.backlog.logs.check(caller.tenant)
            await self.backlog.check_signal(caller.tenant, _size(content, settings))
        fresh = {"start": new_run, "run_id": steered or new_run, "message_id": requests.new("m")}
        ids = await idempotency.ids_once(requests, caller, request, fresh)
        start = StartRun(
            tenant=caller.tenant,
            conversation_id=request.conversation_id,
            run_id=ids["start"],
            message_id=ids["message_id"],
            content=content,
            settings=settings,
            user=caller.user,
            first=created is not None,
            provenance=provenance,
        )
        if ids["run_id"] == ids["start"]:
            await self.queue.publish(start, unless_alone=check_queue)
        else:
            await self.queue.signal(_steer(start, caller), start.message_id)
        await reach("gateway.before_response")
        try:
            await self.conversations.touch(caller.tenant, record, text_of(content))
        except Refused as error:
            # The run is stored: after an error, the client would send the message again.
            logger.warning("%s: its list entry was not updated: %s", request.conversation_id, error)
        return Ack(
            reply_to=request.id,
            conversation_id=request.conversation_id,
            run_id=ids["run_id"],
            message_id=ids["message_id"],
        )

    async def _provenance(self, caller: Caller, request: ChatSend) -> Provenance:
        """Return who wrote a message: one that replaces a message of another author has that author.

        Raises `NotFound` if a compaction replaced the beginning of its branch.
        """
        if request.branch is None:
            return request.provenance
        after = request.branch.after
        if request.mode == "steer":
            raise BadInput("branch", after, "nothing for a message that steers a run")
        state = await self.views.state(caller.tenant, request.conversation_id)
        paths = Paths(state.history, state.left)
        if not paths.reaches(after):
            raise NotFound("message", after or "")
        replaced = (one.provenance for one in paths.after(after) if isinstance(one, UserMessage))
        return next((one for one in replaced if one.author != "person"), request.provenance)

    async def _steered_run(self, caller: Caller, request: ChatSend) -> str | None:
        """Return the open run that a message steers; None if the message starts a run of its own."""
        if request.mode != "steer":
            return None
        view = await self.views.read(caller.tenant, request.conversation_id)
        return None if view.open_run is None else view.open_run.run_id


@dataclass(frozen=True, slots=True)
class RunCancels:
    runs: Runs
    queue: RunQueue
    backlog: Backlog

    async def cancel(self, caller: Caller, request: RunCancel) -> Ack:
        """Store a cancel. It has no effect on a run that has ended."""
        conversation_id = conversation_of(request.run_id)
        idempotency.check_conversation(request.conversation_id, conversation_id)
        # A cancel of a run that is only queued is stored; an agent ends the run when its start arrives.
        run = await self.runs.find(caller.tenant, request.run_id)
        if not run.finished_in:
            await self.backlog.check_signal(caller.tenant)
            signal = CancelRun(
                tenant=caller.tenant,
                conversation_id=conversation_id,
                run_id=request.run_id,
                reason=request.reason,
                by=caller.user,
            )
            await self.queue.signal(signal, idempotency.request_key(caller, request))
        return Ack(reply_to=request.id, conversation_id=conversation_id, run_id=request.run_id)


def _size(content: Content, settings: RunSettings) -> int:
    return len(str(content)) + len(settings.system_prompt or "") + len(str(settings.variables))


def _steer(start: StartRun, caller: Caller) -> SteerRun:
    return SteerRun(
        tenant=start.tenant,
        conversation_id=start.conversation_id,
        message_id=start.message_id,
        content=start.content,
        start=start,
        by=caller.user,
    )


def _with_attachments(content: Content, paths: tuple[str, ...]) -> Content:
    if not paths:
        return content
    parts: tuple[Part, ...] = (TextPart(text=content),) if isinstance(content, str) else content
    return (*parts, *(FilePart(path=path) for path in paths))


@dataclass(frozen=True, slots=True)
class FirstMessage:
    """A message that creates its conversation."""

    request_id: str
    body: NewChat


@dataclass(frozen=True, slots=True)
class RunsOverHttp:
    """Starts over HTTP: the response has the ids, the outcome, or the events as a stream."""

    changes: ConversationChanges
    starts: RunStarts
    requests: idempotency.StoredRequests
    followed: FollowedRuns
    runs: Runs

    async def start(
        self,
        caller: Caller,
        request: Request,
        response: Response,
        message: ChatSend | FirstMessage,
        wait_s: float,
        detail: Detail,
        *,
        or_parked: bool = False,
    ) -> AcceptedRun | Run | StreamedResponse:
        """Start a run; return its events if the request accepts a stream, else its ids, or its outcome."""
        async with self.starts.backlog.one_start(caller.tenant):
            frame = await self._frame(caller, message)
            if "text/event-stream" in request.headers.get("accept", ""):
                run = await self.followed.start(caller, frame, detail)
                return run.stream(_events(run))
            accepted = AcceptedRun.of(await self.starts.send(caller, frame, self.requests))
        return await self.outcome(caller, response, accepted, wait_s, or_parked=or_parked)

    async def _frame(self, caller: Caller, message: ChatSend | FirstMessage) -> ChatSend:
        """Return the frame of a message, after the conversation of a first message is created."""
        if isinstance(message, ChatSend):
            return message
        request_id, body = message.request_id, message.body
        create = body.frame(creation_id(request_id))
        created = await self.changes.create(caller, create, self.requests, title_from=body.content)
        return body.sent(request_id, created.conversation_id or "")

    async def outcome(
        self,
        caller: Caller,
        response: Response,
        accepted: AcceptedRun,
        wait_s: float,
        *,
        or_parked: bool = False,
    ) -> AcceptedRun | Run:
        """Return the body for a started run: its ids, or after up to `wait_s` its outcome with status 200."""
        response.headers["location"] = f"/context/runs/{accepted.run_id}"
        if not wait_s:
            return accepted
        found = await self.runs.wait(
            caller.tenant, accepted.run_id, wait_s, or_parked=or_parked, started=True
        )
        run = run_body(found)
        if isinstance(run, EndedRun):
            response.status_code = 200
        return run


async def _events(run: FollowedRun) -> AsyncIterator[bytes]:
    async for frame in run.frames():
        head = json.loads(frame)
        number = f"id: {head['seq']}\n" if "seq" in head else ""
        yield f"{number}event: {head['type']}\ndata: {frame}\n\n".encode()
