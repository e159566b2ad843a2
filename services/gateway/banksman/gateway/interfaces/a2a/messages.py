"""Converts messages of A2A clients to messages, decisions and values of runs."""

from __future__ import annotations

import json

from banksman.contracts.errors import BadInput, Conflict
from banksman.contracts.frames import ApprovalDecision, InputReply
from banksman.contracts.ids import digest
from banksman.contracts.messages import Content, ImagePart, Part, TextPart, text_of
from banksman.contracts.wire import JsonObject, parse
from banksman.gateway.conversations.view import ConversationView
from banksman.gateway.interfaces.a2a.models import CONTENT_TYPE_NOT_SUPPORTED, A2aMessage, A2aPart, RpcError

ANSWER_FIELDS = frozenset({"approval_id", "request_id", "decisions", "all", "remember", "digests", "value"})
DECISION_WORDS = {"approve": "approve", "reject": "reject"}
"""Texts that decide all calls of an approval request."""


def request_id(message: A2aMessage) -> str:
    return f"a2a-{digest(message.message_id.encode())}"


def content_of(message: A2aMessage) -> Content:
    """Return a message's content for a run.

    Raises:
        RpcError: A part is neither text, data nor an image.
    """
    parts = tuple(_part(part) for part in message.parts)
    return text_of(parts) if all(isinstance(part, TextPart) for part in parts) else parts


def answer_of(
    message: A2aMessage, run_id: str, view: ConversationView
) -> ApprovalDecision | InputReply | None:
    """Return the decision or the value that a message to an open run contains; None if it contains neither.

    Raises:
        BadInput: The decision or value is malformed.
        Conflict: The run waits for no decision or value.
    """
    data = next((part.data for part in message.parts if _is_answer(part)), None)
    text = " ".join(part.text or "" for part in message.parts).strip()
    approval = next((id for id, one in view.approvals.items() if one.run_id == run_id), None)
    wanted = next((id for id, one in view.inputs.items() if one.run_id == run_id), None)
    if isinstance(data, dict):
        return _answer(message, data, approval, wanted)
    if approval is not None and text.casefold() in DECISION_WORDS:
        return _answer(message, {"all": DECISION_WORDS[text.casefold()]}, approval, None)
    if wanted is not None:
        return _answer(message, {"value": text}, None, wanted)
    return None


def _answer(
    message: A2aMessage, data: JsonObject, approval: str | None, wanted: str | None
) -> ApprovalDecision | InputReply:
    head: JsonObject = {"id": request_id(message)}
    if "value" in data:
        head |= {"type": "input.reply", "request_id": data.get("request_id", wanted)}
        body, model = {**head, "value": data["value"]}, InputReply
    else:
        head |= {"type": "approval.reply", "approval_id": data.get("approval_id", approval)}
        given = {
            name: value for name, value in data.items() if name in ANSWER_FIELDS and name != "request_id"
        }
        body, model = {**given, **head}, ApprovalDecision
    if body.get("approval_id", body.get("request_id")) is None:
        raise Conflict("the task waits for no decision or value")
    return parse(model, body, what="message.parts.data")


def _is_answer(part: A2aPart) -> bool:
    return isinstance(part.data, dict) and not ANSWER_FIELDS.isdisjoint(part.data)


def _part(part: A2aPart) -> Part:
    if part.text:
        return TextPart(text=part.text)
    if part.data is not None:
        return TextPart(text=json.dumps(part.data, ensure_ascii=False))
    if part.media_type.startswith("image/") and (part.url or part.raw):
        url = part.url or f"data:{part.media_type};base64,{part.raw}"
        if len(url) > 256 * 1024:
            raise BadInput("message.parts.raw", len(url), "an image of at most 256 KiB")
        return ImagePart(url=url, media_type=part.media_type)
    if part.text is not None and not (part.url or part.raw):
        return TextPart(text="")
    raise RpcError(CONTENT_TYPE_NOT_SUPPORTED, "a part must be text, data, or an image")
