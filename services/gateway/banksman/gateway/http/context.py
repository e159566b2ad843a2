"""The context endpoints: conversations, runs, approvals."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic_core import to_json

from banksman.contracts.errors import ErrorCode
from banksman.contracts.frames import (
    DETAILS,
    Ack,
    ApprovalDecision,
    ChatSend,
    ConversationCreate,
    Detail,
    RunCancel,
    detail_of,
)
from banksman.gateway.http.answers import json_response
from banksman.gateway.http.bodies import CancelBody, DecisionBody, NewChat, NewConversation, NewRun, Rename
from banksman.gateway.http.requests import body, context_caller, request_id, takes
from banksman.gateway.http.run_stream import run_stream
from banksman.gateway.service.auth import Caller
from banksman.gateway.service.event_frames import encoded_event, subscribed
from banksman.gateway.service.gateway import Gateway

MAX_WAIT_S = 60.0
MAX_EVENTS = 1_000

Wait = Annotated[float, Query(ge=0, le=MAX_WAIT_S)]
PageSize = Annotated[int, Query(ge=1, le=1000)]
Position = Annotated[int, Query(ge=0, le=2**63 - 2)]


def context_router(gateway: Gateway) -> APIRouter:
    """The routes under `/context/conversations`, `/context/runs` and `/context/approvals`, and `/v1/chat`."""
    router = APIRouter(tags=["context"])
    caller_of = context_caller(gateway.keys)
    _add_conversations(router, gateway, Depends(caller_of))
    _add_events(router, gateway, Depends(caller_of))
    _add_runs(router, gateway, Depends(caller_of))
    _add_approvals(router, gateway, Depends(caller_of))
    return router


def _add_conversations(router: APIRouter, gateway: Gateway, who: Any) -> None:
    conversations, service = gateway.service.conversations, gateway.service

    @router.post(
        "/context/conversations", status_code=201, openapi_extra=takes(NewConversation, required=False)
    )
    async def create_conversation(request: Request, caller: Caller = who) -> Response:
        given = await body(request, NewConversation)
        ack = await service.answer(caller, _creation(request_id(request), given))
        record = await conversations.get(caller.tenant, ack.conversation_id or "")
        return json_response(record.model_dump(mode="json"), 201)

    @router.get("/context/conversations")
    async def list_conversations(
        q: str = "",
        cursor: str | None = None,
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
        caller: Caller = who,
    ) -> Response:
        page = await conversations.list(caller.tenant, query=q, cursor=cursor, limit=limit)
        items = [record.model_dump(mode="json") for record in page.items]
        return json_response({"items": items, "next": page.next})

    @router.get("/context/conversations/{conversation_id}")
    async def read_conversation(conversation_id: str, caller: Caller = who) -> Response:
        record = await conversations.shown(caller.tenant, conversation_id)
        view = await service.views.read(caller.tenant, conversation_id)
        head = subscribed(conversation_id, view).model_dump(mode="json", exclude={"type", "reply_to"})
        return json_response({**head, **record.model_dump(mode="json")})

    @router.patch("/context/conversations/{conversation_id}", openapi_extra=takes(Rename))
    async def rename_conversation(conversation_id: str, request: Request, caller: Caller = who) -> Response:
        given = await body(request, Rename)
        await service.rename(caller, conversation_id, given.title)
        record = await conversations.shown(caller.tenant, conversation_id)
        return json_response(record.model_dump(mode="json"))

    @router.delete("/context/conversations/{conversation_id}", status_code=204)
    async def delete_conversation(conversation_id: str, caller: Caller = who) -> Response:
        await service.delete(caller, conversation_id)
        return Response(status_code=204)


def _add_events(router: APIRouter, gateway: Gateway, who: Any) -> None:
    @router.get("/context/conversations/{conversation_id}/events")
    async def list_events(
        conversation_id: str,
        after_seq: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_EVENTS)] = MAX_EVENTS,
        detail: Detail = "full",
        caller: Caller = who,
    ) -> Response:
        """Stored events after `after_seq`, as the frames that the websocket sends."""
        await gateway.service.conversations.get(caller.tenant, conversation_id)
        page = await gateway.service.views.events(caller.tenant, conversation_id, after_seq=after_seq)
        frames: list[bytes] = []
        last, more = after_seq, False
        for event in page.events:
            if DETAILS.index(detail_of(event)) > DETAILS.index(detail):
                continue
            if len(frames) == limit:
                more = True
                break
            frames.append(encoded_event(event, conversation_id, page.log_epoch, last).encode())
            last = event.seq
        head = to_json(
            {
                "head_seq": page.head_seq,
                "oldest_seq": page.oldest_seq,
                "log_epoch": page.log_epoch,
                "next": last if more else None,
            }
        )
        content = b'{"items":[' + b",".join(frames) + b"]," + head[1:]
        return Response(content, media_type="application/json")


def _add_runs(router: APIRouter, gateway: Gateway, who: Any) -> None:
    service, runs = gateway.service, gateway.runs

    @router.post(
        "/context/conversations/{conversation_id}/runs", status_code=202, openapi_extra=takes(NewRun)
    )
    async def start_run(
        conversation_id: str,
        request: Request,
        wait_s: Wait = 0,
        detail: Detail = "final",
        caller: Caller = who,
    ) -> Response:
        """Start a run: 202 with its id, 200 with its outcome when it ends within `wait_s`, or its events."""
        given = await body(request, NewRun)
        frame = ChatSend(
            type="chat.send", id=request_id(request), conversation_id=conversation_id, **_fields(given)
        )
        return await _started(gateway, caller, request, frame, wait_s, detail)

    @router.post("/v1/chat", status_code=202, openapi_extra=takes(NewChat))
    async def chat(
        request: Request, wait_s: Wait = 0, detail: Detail = "final", caller: Caller = who
    ) -> Response:
        """Start a run in a new conversation; otherwise as `POST /context/conversations/{id}/runs`."""
        given = await body(request, NewChat)
        key = request_id(request)
        created = await service.answer(caller, _creation(f"{key}:conversation"[-128:], given))
        frame = ChatSend(
            type="chat.send",
            id=key,
            conversation_id=created.conversation_id or "",
            content=given.content,
            overrides=given.overrides,
            variables=given.variables,
        )
        return await _started(gateway, caller, request, frame, wait_s, detail)

    @router.get("/context/conversations/{conversation_id}/runs")
    async def list_runs(conversation_id: str, caller: Caller = who) -> Response:
        found = await runs.of_conversation(caller.tenant, conversation_id)
        return json_response({"items": [run.shown() for run in found], "next": None})

    @router.get("/context/runs/{run_id}")
    async def read_run(run_id: str, wait_s: Wait = 0, caller: Caller = who) -> Response:
        found = await (
            runs.wait(caller.tenant, run_id, wait_s) if wait_s else runs.get(caller.tenant, run_id)
        )
        return json_response(found.shown())

    @router.post(
        "/context/runs/{run_id}/cancel", status_code=202, openapi_extra=takes(CancelBody, required=False)
    )
    async def cancel_run(run_id: str, request: Request, caller: Caller = who) -> Response:
        given = await body(request, CancelBody)
        await runs.get(caller.tenant, run_id)
        frame = RunCancel(type="run.cancel", id=request_id(request), run_id=run_id, reason=given.reason)
        return json_response(_ids(await service.answer(caller, frame)), 202)


async def _started(
    gateway: Gateway, caller: Caller, request: Request, frame: ChatSend, wait_s: float, detail: Detail
) -> Response:
    if "text/event-stream" in request.headers.get("accept", ""):
        return await run_stream(gateway, caller, frame, detail)
    ack = await gateway.service.answer(caller, frame)
    run_id = ack.run_id or ""
    headers = {"location": f"/context/runs/{run_id}"}
    if not wait_s:
        return json_response({**_ids(ack), "status": "queued"}, 202, headers)
    run = await gateway.runs.wait(caller.tenant, run_id, wait_s)
    return json_response(run.shown(), 200 if run.outcome else 202, headers)


def _add_approvals(router: APIRouter, gateway: Gateway, who: Any) -> None:
    service = gateway.service

    @router.get("/context/approvals")
    async def list_approvals(limit: PageSize = 1000, after: Position = 0, caller: Caller = who) -> Response:
        """The tenant's open approvals, oldest first; `next` is `after` of the next page."""
        pending = await service.approvals.pending(caller.tenant, limit=limit, after=after)
        items = [request.model_dump(mode="json", exclude={"v", "tenant"}) for _, request in pending]
        return json_response({"items": items, "next": pending[-1][0] if len(pending) == limit else None})

    @router.post("/context/approvals/{approval_id}", openapi_extra=takes(DecisionBody))
    async def decide_approval(approval_id: str, request: Request, caller: Caller = who) -> Response:
        given = await body(request, DecisionBody)
        frame = ApprovalDecision(
            type="approval.reply", id=request_id(request), approval_id=approval_id, **_fields(given)
        )
        ack = await service.answer(caller, frame)
        if not ack.already_resolved:
            return json_response(_ids(ack))
        # First decision wins: the answer names the winner.
        message = f"the approval was {ack.outcome} by {ack.resolved_by} before"
        return json_response({"error": {"message": message, "code": ErrorCode.CONFLICT}, **_ids(ack)}, 409)


def _creation(key: str, given: NewConversation) -> ConversationCreate:
    return ConversationCreate(
        type="conversation.create",
        id=key,
        title=given.title,
        assistant=given.assistant,
        system_prompt_id=given.system_prompt_id,
        model=given.model,
        settings=given.settings,
    )


def _fields(given: NewRun | DecisionBody) -> dict[str, Any]:
    return {name: getattr(given, name) for name in type(given).model_fields}


def _ids(ack: Ack) -> dict[str, Any]:
    return ack.model_dump(exclude={"type", "reply_to"}, exclude_none=True)
