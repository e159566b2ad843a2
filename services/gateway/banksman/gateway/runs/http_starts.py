"""Starts of runs over HTTP: the response has the ids, the outcome, or the events as a stream."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

from fastapi import Request, Response

from banksman.contracts.frames import ChatSend, Detail
from banksman.gateway.conversations.changes import ConversationChanges
from banksman.gateway.conversations.operations import creation
from banksman.gateway.live.followed_runs import FollowedRun, FollowedRuns
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.parameters import creation_id
from banksman.gateway.operation.streaming import StreamedResponse
from banksman.gateway.runs.bodies import AcceptedRun, EndedRun, NewChat, Run, run_body
from banksman.gateway.runs.idempotency import StoredRequests
from banksman.gateway.runs.runs import Runs
from banksman.gateway.runs.starts import RunStarts


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsOverHttp:
    changes: ConversationChanges
    starts: RunStarts
    requests: StoredRequests
    followed: FollowedRuns
    runs: Runs

    async def first_message(self, caller: Caller, request_id: str, body: NewChat) -> ChatSend:
        frame = creation(creation_id(request_id), body)
        created = await self.changes.create(caller, frame, self.requests, title_from=body.content)
        return message(request_id, created.conversation_id or "", body)

    async def start(
        self,
        caller: Caller,
        request: Request,
        response: Response,
        frame: ChatSend,
        wait_s: float,
        detail: Detail,
        *,
        or_parked: bool = False,
    ) -> AcceptedRun | Run | StreamedResponse:
        """Start a run; return its events if the request accepts a stream, else its ids, or its outcome."""
        if "text/event-stream" in request.headers.get("accept", ""):
            run = await self.followed.start(caller, frame, detail)
            return run.stream(_events(run))
        accepted = AcceptedRun.of(await self.starts.send(caller, frame, self.requests))
        return await self.outcome(caller, response, accepted, wait_s, or_parked=or_parked)

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


def message(request_id: str, conversation_id: str, body: NewChat) -> ChatSend:
    return ChatSend(
        type="chat.send",
        id=request_id,
        conversation_id=conversation_id,
        content=body.content,
        overrides=body.overrides,
        variables=body.variables,
    )


async def _events(run: FollowedRun) -> AsyncIterator[bytes]:
    async for frame in run.frames():
        head = json.loads(frame)
        number = f"id: {head['seq']}\n" if "seq" in head else ""
        yield f"{number}event: {head['type']}\ndata: {frame}\n\n".encode()
