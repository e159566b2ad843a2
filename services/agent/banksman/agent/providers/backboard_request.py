"""Map a `ModelRequest` to Backboard: continue a thread, or start one with the history as text.

Backboard stores the messages of a conversation in a thread. The provider state of our replies in the log
names the thread and the history that it contains, so any agent can continue it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import assert_never, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from banksman.agent.protocols.base import ModelRequest, prose_call, result_text
from banksman.agent.providers.exchanges import (
    InlineDocument,
    InlineImage,
    LinkedImage,
    ModelExchange,
    SentPart,
    paired,
    sent_parts,
)
from banksman.agent.providers.openai_request import EMPTY_MESSAGE, tool_param
from banksman.contracts.messages import AssistantMessage, Message, ToolMessage, UserMessage
from banksman.contracts.wire import JsonObject
from banksman.runs.outcome import message_json

_HISTORY = "What was said in this conversation so far:"
_NEXT = "Go on from here. The next message:"
_CLOSING = "Go on from here."


class ThreadState(BaseModel):
    """The provider state of a reply in the log."""

    model_config = ConfigDict(frozen=True)

    assistant_id: str
    configured: str
    """Digest of the assistant's prompt and tools."""
    thread_id: str
    run_id: str | None = None
    """The run that waits for the outputs of this reply's calls; None if the reply has none."""
    model: str
    """The model with which the run continues."""
    history: str
    """Digest of the history before the reply. A compaction changes it."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Start a thread whose first message contains the whole history."""

    text: str


@dataclass(frozen=True, slots=True)
class Continue:
    """Send the next message to a thread that contains the history before it."""

    thread_id: str
    text: str
    message_ids: tuple[str, ...]
    """Ids of the log's messages that the text contains."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Submit the outputs that a thread's run waits for."""

    thread_id: str
    run_id: str
    outputs: dict[str, str]
    """Outputs by the vendor's call id."""


Plan = Begin | Continue | Submit


def plan(request: ModelRequest, provider: str) -> Plan:
    """Return how to send the part of the history that the vendor does not have.

    A thread continues only if its last reply is the last reply of the history. A later reply of another
    provider, a compaction, another model, or a message in addition to outputs requires a new thread: a run
    that waits for outputs accepts nothing else.
    """
    older, tail = _divided(request)
    match older[-1] if older else None, _current_state(request, provider):
        case ModelExchange(calls=(_, *_)) as last, ThreadState(run_id=str(run_id)) as state if not tail:
            if state.model == request.model:
                return Submit(state.thread_id, run_id, _outputs(last))
        case ModelExchange(calls=()), ThreadState(run_id=None) as state if tail:
            return Continue(state.thread_id, _joined(tail), tuple(message.message_id for message in tail))
        case _:
            pass
    return begin(request)


def begin(request: ModelRequest) -> Begin:
    """Return the plan for a new thread, which is always possible."""
    older, tail = _divided(request)
    now = _joined(tail)
    if not older:
        return Begin(now)
    history = [_HISTORY, *(piece for item in older for piece in _as_text(item))]
    return Begin("\n\n".join([*history, *((_NEXT, now) if tail else (_CLOSING,))]))


def _divided(request: ModelRequest) -> tuple[list[UserMessage | ModelExchange], list[UserMessage]]:
    """Return the history up to the last reply of the model, and the messages of the user after it."""
    items = paired(request.messages)
    after = max((at + 1 for at, item in enumerate(items) if isinstance(item, ModelExchange)), default=0)
    return items[:after], [item for item in items[after:] if isinstance(item, UserMessage)]


def known_assistant(request: ModelRequest, provider: str) -> ThreadState | None:
    """Return the newest state in the history. Its assistant also serves new threads of the conversation."""
    replies = (message for message in reversed(request.messages) if isinstance(message, AssistantMessage))
    return next((state for message in replies if (state := thread_state(message, provider))), None)


def thread_state(reply: AssistantMessage, provider: str) -> ThreadState | None:
    """Return the state of a reply; None if it has none or another provider wrote it."""
    if reply.provider != provider or not reply.provider_state:
        return None
    try:
        return ThreadState.model_validate(reply.provider_state)
    except ValidationError:
        return None


def tools(request: ModelRequest) -> list[JsonObject]:
    """Return the tools of an assistant, which have OpenAI's format."""
    return [cast("JsonObject", tool_param(tool)) for tool in request.tools]


def configuration(request: ModelRequest) -> str:
    """Return the digest of the prompt and tools that the assistant needs for this request."""
    written = json.dumps([request.system, tools(request)], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(written.encode()).hexdigest()


def history_digest(messages: Iterable[Message]) -> str:
    """Return the digest of the messages' ids, which do not change when calls become text."""
    return hashlib.sha256(json.dumps([_id(message) for message in messages]).encode()).hexdigest()


def _current_state(request: ModelRequest, provider: str) -> ThreadState | None:
    """Return the state of the last reply; None if its thread does not contain the current history."""
    messages = request.messages
    at = max((at for at, m in enumerate(messages) if isinstance(m, AssistantMessage)), default=None)
    reply = messages[at] if at is not None else None
    state = thread_state(reply, provider) if isinstance(reply, AssistantMessage) else None
    return state if state is not None and state.history == history_digest(messages[:at]) else None


def _id(message: Message) -> str:
    return message.result.tool_call_id if isinstance(message, ToolMessage) else message.message_id


def _outputs(exchange: ModelExchange) -> dict[str, str]:
    # The vendor matches outputs by the exact id that it assigned, even if other vendors would refuse it.
    pairs = zip(exchange.reply.calls, exchange.calls, strict=True)
    return {call.provider_call_id or call.id: message_json(sent.message) for call, sent in pairs}


def _as_text(item: UserMessage | ModelExchange) -> Iterator[str]:
    match item:
        case UserMessage():
            yield f"[user]\n{_joined([item])}"
        case ModelExchange(reply, calls):
            pieces = [reply.content or "", *map(prose_call, reply.calls)]
            if any(piece.strip() for piece in pieces):
                yield "[assistant]\n" + "\n\n".join(filter(str.strip, pieces))
            if calls:
                yield "[tools]\n" + "\n\n".join(result_text(call.message) for call in calls)
        case _:
            assert_never(item)


def _joined(messages: Iterable[UserMessage]) -> str:
    pieces = (_piece(part) for message in messages for part in sent_parts(message.content))
    return "\n\n".join(pieces) or EMPTY_MESSAGE


def _piece(part: SentPart) -> str:
    """Return a part as text. A thread's attachments are documents to search, and models do not see images."""
    match part:
        case str():
            return part
        case InlineImage(media_type, _):
            return f"[The user attached an image of the type {media_type}, which cannot be shown.]"
        case InlineDocument():
            return "[The user attached a document, which you cannot see.]"
        case LinkedImage(url):
            return f"[The user attached the image {url}]"
        case _:
            assert_never(part)
