"""Runs agents through the Chat Completions API of OpenAI and the Messages API of Anthropic."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Annotated, Any

from fastapi import Request, Response
from starlette.responses import JSONResponse

from banksman.contracts.events import RunFinished
from banksman.contracts.frames import ChatSend
from banksman.gateway.feature import Feature
from banksman.gateway.interfaces.chat_formats import replies, requests
from banksman.gateway.live.followed_runs import STOPPING, FollowedRun, FollowedRuns, run_headers
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.declaration import BodyLimit, Operations
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.operation.errors import AnthropicErrorBody, OpenAIErrorBody, error_body, errors_as
from banksman.gateway.operation.parameters import CallerDep, RequestId, StrictBody, provided
from banksman.gateway.operation.streaming import CLIENT_CLOSED, unless_disconnected
from banksman.gateway.runs.bodies import EndedRun, Run

WAIT_S = 60.0
"""Seconds of one wait for an outcome; the request waits again until the run ends."""
SHOWN = frozenset({"approval.requested", "approval.resolved", "input.requested"})
"""The events that a stream shows as comments, which clients of the vendors' formats skip."""

_REPLY: dict[str, Any] = {
    "description": "The reply in the format of the path; a stream if `stream` is true",
    "content": {
        "application/json": {"schema": {"type": "object"}},
        "text/event-stream": {"schema": {"type": "string"}},
    },
}
OF_OPENAI: dict[str, Any] = {
    "not_over_nats": "a format of OpenAI's HTTP API",
    "response_class": Response,
    "responses": {**errors_as(OpenAIErrorBody), 200: _REPLY},
}
OF_ANTHROPIC: dict[str, Any] = {
    "not_over_nats": "a format of Anthropic's HTTP API",
    "response_class": Response,
    "responses": {**errors_as(AnthropicErrorBody), 200: _REPLY},
}

Follow = Annotated[FollowedRuns, provided(FollowedRuns)]

operations = Operations("chat")


@operations.add("chat.openai", "POST /context/chat/completions", body=BodyLimit.LARGE, **OF_OPENAI)
async def agent_chat_completions(
    body: StrictBody[requests.ChatCompletionRequest],
    request: Request,
    followed: Follow,
    caller: CallerDep,
    request_id: RequestId,
) -> Response:
    """OpenAI's Chat Completions API, served by an agent with its own prompt and tools (R26).

    A client that disconnects cancels the run. Where calls need approval, the run waits for the decision.
    """
    usage = body.stream_options is not None and body.stream_options.include_usage
    writer = partial(replies.ChatCompletionWriter, model=body.model, include_usage=usage)
    chat = requests.read_chat(body, request_id)
    return await _reply(followed, caller, request, chat, writer, stream=body.stream)


@operations.add(
    "chat.anthropic_sdk",
    "POST /context/chat/v1/messages",
    include_in_schema=False,
    body=BodyLimit.LARGE,
    **OF_ANTHROPIC,
)
@operations.add("chat.anthropic", "POST /context/chat/messages", body=BodyLimit.LARGE, **OF_ANTHROPIC)
async def agent_messages(
    body: StrictBody[requests.MessagesRequest],
    request: Request,
    followed: Follow,
    caller: CallerDep,
    request_id: RequestId,
) -> Response:
    """Anthropic's Messages API, served by an agent as `POST /context/chat/completions` is (R26).

    Anthropic's SDKs append `/v1/messages` to their base URL: `…/context/chat` leads them to this endpoint.
    """
    writer = partial(replies.MessagesWriter, model=body.model)
    chat = requests.read_chat(body, request_id)
    return await _reply(followed, caller, request, chat, writer, stream=body.stream)


async def _in_conversation(dispatcher: Dispatcher, caller: Caller, chat: requests.ChatFrames) -> ChatSend:
    """Return the message, after its conversation is created if it has none."""
    if chat.creation is None:
        return chat.message
    created = await dispatcher.handle(caller, chat.creation, title_from=chat.message.content)
    return chat.message.model_copy(update={"conversation_id": created.conversation_id or ""})


async def _reply(
    followed: FollowedRuns,
    caller: Caller,
    request: Request,
    chat: requests.ChatFrames,
    writer: Callable[[replies.Extension], replies.Writer],
    *,
    stream: bool,
) -> Response:
    async with followed.dispatcher.one_start(caller):
        message = await _in_conversation(followed.dispatcher, caller, chat)
        conversation_id = message.conversation_id
        if stream:
            run = await followed.start(caller, message, "final")
            return run.stream(_events(run, writer(replies.Extension(conversation_id, run.run_id))))
        run_id = (await followed.dispatcher.handle(caller, message)).run_id or ""
    outcome = await unless_disconnected(request.receive, _outcome(followed, caller, run_id))
    if outcome is None:
        await followed.cancel_abandoned(caller, run_id)
        return Response(status_code=CLIENT_CLOSED)
    headers = run_headers(conversation_id, run_id)
    if not isinstance(outcome, EndedRun):
        why = f"{STOPPING}. Read /context/runs/{run_id}."
        return JSONResponse(error_body(request.url.path, 400, "unavailable", why), 400, headers)
    if failed := replies.failure(outcome):
        # Vendors' SDKs retry a request after a status of 500 or more, and a second run would repeat side
        # effects.
        return JSONResponse(error_body(request.url.path, 400, *failed), 400, headers)
    return JSONResponse(writer(replies.Extension(conversation_id, run_id)).body(outcome), headers=headers)


async def _outcome(followed: FollowedRuns, caller: Caller, run_id: str) -> Run:
    """Return a run once it has ended, or when the gateway stops."""
    while True:
        run: Run = await followed.dispatcher.request("run.read", caller, run_id=run_id, wait_s=WAIT_S)
        if isinstance(run, EndedRun) or followed.stopping.is_set():
            return run


async def _events(run: FollowedRun, writer: replies.Writer) -> AsyncIterator[bytes]:
    yield writer.begin()
    text = replies.StreamedText()
    async for written in run.frames():
        frame: dict[str, Any] = json.loads(written)
        kind, data = frame["type"], frame.get("data", {})
        match kind:
            case "message.delta":
                piece = text.delta(data["message_id"], data["offset"], data["text"])
            case "message.completed":
                cut = bool(data.get("truncated"))
                piece = text.completed(data["message_id"], data["content"] or "", truncated=cut)
            case "run.finished":
                outcome = RunFinished.model_validate(data)
                yield _end(writer, text, outcome)
                return
            case "resync_required":
                break
            case _ if kind in SHOWN:
                yield f": {kind} {json.dumps(data)}\n\n".encode()
                continue
            case _:
                continue
        if piece:
            yield writer.text(piece)
    yield writer.error("unavailable", f"The events cannot be followed. Read /context/runs/{run.run_id}.")


def _end(writer: replies.Writer, text: replies.StreamedText, outcome: RunFinished) -> bytes:
    if failed := replies.failure(outcome):
        return writer.error(*failed)
    piece = text.final(outcome)
    return (writer.text(piece) if piece else b"") + writer.end(outcome)


FEATURE = Feature(operations)
