"""What a history is on Backboard: a thread that goes on, or a new one that is told what was said.

Backboard keeps the messages of a conversation itself, in a thread. Which thread that is, and up to where it
holds our history, stands in the state of our replies in the log, so any agent goes on where another stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import assert_never, cast

from pydantic import BaseModel, ConfigDict, ValidationError

from banksman.agent.protocols.base import ModelRequest
from banksman.agent.protocols.flatten import prose_call, result_text
from banksman.agent.providers.history import Exchange, exchanges
from banksman.agent.providers.openai_request import EMPTY_MESSAGE, tool_param
from banksman.agent.providers.parts import InlineImage, LinkedImage, SentPart, sent_parts
from banksman.contracts.messages import AssistantMessage, Message, ToolMessage, UserMessage
from banksman.contracts.wire import JsonObject
from banksman.runs.outcome import result_json

_TOLD = "What was said in this conversation so far:"
_NOW = "Go on from here. The next message:"
_CLOSING = "Go on from here."


class ThreadState(BaseModel):
    """What a reply of ours carries in the log."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    assistant_id: str
    configured: str
    """The digest of the prompt and the tools that the assistant has."""
    thread_id: str
    run_id: str | None = None
    """The run that waits for the outputs of this reply's calls."""
    model: str
    """The model that the run goes on with."""
    history: str
    """The digest of the history that the reply answered, which a compaction changes."""


@dataclass(frozen=True, slots=True)
class Begin:
    """A new thread, with the whole history in its first message."""

    text: str


@dataclass(frozen=True, slots=True)
class Continue:
    """The next message of a thread that holds everything before it."""

    thread_id: str
    text: str
    message_ids: tuple[str, ...]
    """The messages of the log that it carries."""


@dataclass(frozen=True, slots=True)
class Submit:
    """The outputs that a thread's run waits for."""

    thread_id: str
    run_id: str
    outputs: dict[str, str]
    """By the vendor's call id."""


Plan = Begin | Continue | Submit


def plan(request: ModelRequest, provider: str) -> Plan:
    """How the vendor is given what it does not hold yet.

    Only a thread whose last reply is the last of the history goes on: another model's words in between, a
    compaction, a message beside outputs (a run that waits takes nothing else), or another model make it a
    new one.
    """
    items = exchanges(request.messages)
    place = max((at for at, item in enumerate(items) if isinstance(item, Exchange)), default=None)
    last = items[place] if place is not None else None
    tail = [item for item in items[(place or 0) + 1 :] if isinstance(item, UserMessage)]
    match last, _held(request, provider):
        case Exchange(calls=(_, *_)), ThreadState(run_id=str(run_id)) as held if not tail:
            if held.model == request.model:
                return Submit(held.thread_id, run_id, _outputs(last))
        case Exchange(calls=()), ThreadState(run_id=None) as held if tail:
            return Continue(held.thread_id, _joined(tail), tuple(said.message_id for said in tail))
        case _:
            pass
    return begin(request)


def begin(request: ModelRequest) -> Begin:
    """A new thread, which nothing can prevent."""
    items = exchanges(request.messages)
    after = max((at + 1 for at, item in enumerate(items) if isinstance(item, Exchange)), default=0)
    now = _joined(item for item in items[after:] if isinstance(item, UserMessage))
    if not after:
        return Begin(now)
    told = [_TOLD, *(piece for item in items[:after] for piece in _told(item))]
    return Begin("\n\n".join([*told, *((_NOW, now) if items[after:] else (_CLOSING,))]))


def known_assistant(request: ModelRequest, provider: str) -> ThreadState | None:
    """The newest state in the history, whose assistant serves new threads of the conversation too."""
    said = (message for message in reversed(request.messages) if isinstance(message, AssistantMessage))
    return next((state for message in said if (state := thread_state(message, provider))), None)


def thread_state(said: AssistantMessage, provider: str) -> ThreadState | None:
    """The state that a reply carries; None when it is another provider's, or none."""
    if said.provider != provider or not said.provider_state:
        return None
    try:
        return ThreadState.model_validate(said.provider_state)
    except ValidationError:
        return None


def tools(request: ModelRequest) -> list[JsonObject]:
    """The tools as an assistant has them; they have OpenAI's form."""
    return [cast("JsonObject", tool_param(tool)) for tool in request.tools]


def configuration(request: ModelRequest) -> str:
    """The digest of what the assistant must be set to for this request."""
    written = json.dumps([request.system, tools(request)], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(written.encode()).hexdigest()


def history_digest(messages: Iterable[Message]) -> str:
    """The digest of the messages' ids, which stay when calls are told as text."""
    return hashlib.sha256(json.dumps([_id(message) for message in messages]).encode()).hexdigest()


def _held(request: ModelRequest, provider: str) -> ThreadState | None:
    """The state of the last reply, if its thread holds the history before it as it is now."""
    messages = request.messages
    at = max((at for at, m in enumerate(messages) if isinstance(m, AssistantMessage)), default=None)
    said = messages[at] if at is not None else None
    state = thread_state(said, provider) if isinstance(said, AssistantMessage) else None
    return state if state is not None and state.history == history_digest(messages[:at]) else None


def _id(message: Message) -> str:
    return message.result.tool_call_id if isinstance(message, ToolMessage) else message.message_id


def _outputs(exchange: Exchange) -> dict[str, str]:
    # The vendor matches outputs by the very id that it gave, whatever its form.
    pairs = zip(exchange.said.calls, exchange.calls, strict=True)
    return {call.provider_call_id or call.id: result_json(sent.answer.result) for call, sent in pairs}


def _told(item: UserMessage | Exchange) -> Iterator[str]:
    match item:
        case UserMessage():
            yield f"[user]\n{_joined([item])}"
        case Exchange(said, calls):
            pieces = [said.content or "", *map(prose_call, said.calls)]
            if any(piece.strip() for piece in pieces):
                yield "[assistant]\n" + "\n\n".join(filter(str.strip, pieces))
            if calls:
                yield "[tools]\n" + "\n\n".join(result_text(call.answer) for call in calls)
        case _:
            assert_never(item)


def _joined(messages: Iterable[UserMessage]) -> str:
    pieces = (_piece(part) for message in messages for part in sent_parts(message.content))
    return "\n\n".join(pieces) or EMPTY_MESSAGE


def _piece(part: SentPart) -> str:
    """A part as text: a thread's attachments are documents to search in, not images to look at."""
    match part:
        case str():
            return part
        case InlineImage(media_type, _):
            return f"[The user attached an image of the type {media_type}, which cannot be shown.]"
        case LinkedImage(url):
            return f"[The user attached the image {url}]"
        case _:
            assert_never(part)
