"""`POST /agui`: a run of an agent, its events as server-sent events of AG-UI."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import Query, Response

from banksman.contracts.wire import Token
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.feature import Feature
from banksman.gateway.interfaces.agui.mapping import AguiEvent
from banksman.gateway.interfaces.agui.messages import RunInput
from banksman.gateway.interfaces.agui.threads import AguiRun, Threads
from banksman.gateway.live.followed_runs import FollowedRuns, run_headers
from banksman.gateway.operation.caller import READ
from banksman.gateway.operation.declaration import BodyLimit, Operations
from banksman.gateway.operation.parameters import CallerDep, StrictBody, provided
from banksman.gateway.operation.streaming import SSE_HEADERS, StreamedResponse, kept_alive, sse_event

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
