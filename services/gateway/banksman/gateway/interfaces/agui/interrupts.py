"""Converts approval requests and requests for a value to AG-UI interrupts, and responses to client frames.

https://docs.ag-ui.com/spec/1.0/basic/patterns/interrupt-resume
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from banksman.contracts.approvals import ItemDecision
from banksman.contracts.errors import BadInput
from banksman.contracts.frames import ApprovalDecision, InputReply
from banksman.contracts.ids import is_token
from banksman.contracts.wire import parse
from banksman.gateway.interfaces.agui.models import CallAnswer, ResumeEntry

ABANDONED = "The user abandoned the request."
_EXPECTED = "the id of an interrupt of this thread"


@dataclass(frozen=True, slots=True)
class InterruptId:
    """The id of an interrupt: `APPROVAL/CALL`, or `REQUEST` for a requested value."""

    request_id: str
    """The approval request, or the request for a value."""
    tool_call_id: str | None = None

    def __str__(self) -> str:
        return self.request_id if self.tool_call_id is None else f"{self.request_id}/{self.tool_call_id}"

    @classmethod
    def parse(cls, text: str) -> InterruptId:
        """Return the parts of an id; raise `BadInput` if the text is not the id of an interrupt."""
        request_id, slash, call = text.partition("/")
        if not is_token(request_id) or (slash and not is_token(call)):
            raise BadInput("resume.interruptId", text, _EXPECTED)
        return cls(request_id, call if slash else None)


def approval_interrupts(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one interrupt for each call, from the data of `approval.requested`."""
    approval_id = data["approval_id"]
    return [
        {
            "id": str(InterruptId(approval_id, item["tool_call_id"])),
            "reason": "tool_call",
            "message": _call_message(item),
            "toolCallId": item["tool_call_id"],
            "responseSchema": _answer_schema(editable=item["editable"]),
            "expiresAt": data["expires_at"],
            "metadata": {"banksman": {"approval_id": approval_id, **item}},
        }
        for item in data["items"]
    ]


def input_interrupt(data: dict[str, Any]) -> dict[str, Any]:
    """Return the interrupt for the data of `input.requested`."""
    interrupt = {
        "id": str(InterruptId(data["request_id"])),
        "reason": "input_required",
        "message": data["message"],
        "responseSchema": data["schema"],
    }
    expires = data.get("expires_at")
    return interrupt if expires is None else {**interrupt, "expiresAt": expires}


def answer(entries: Iterable[ResumeEntry], request_id: str) -> ApprovalDecision | InputReply:
    """Return the frame with the decision or value that responds to the interrupts of one request.

    Args:
        entries: The responses, at least one.
        request_id: The id of the frame.

    Raises:
        BadInput: The responses belong to several requests, or one is malformed.
    """
    answers = [(InterruptId.parse(entry.interrupt_id), entry) for entry in entries]
    first, entry = answers[0]
    if any(id.request_id != first.request_id for id, _ in answers):
        raise BadInput("resume", len(answers), "answers to the interrupts of one run")
    if first.tool_call_id is None:
        if entry.status == "cancelled":
            raise BadInput("resume.status", entry.status, "a value, or the cancellation of the run")
        return InputReply(type="input.reply", id=request_id, request_id=first.request_id, value=entry.payload)
    decisions = tuple(_decision(id, entry) for id, entry in answers)
    return ApprovalDecision(
        type="approval.reply", id=request_id, approval_id=first.request_id, decisions=decisions
    )


def _decision(id: InterruptId, entry: ResumeEntry) -> ItemDecision:
    call = id.tool_call_id or ""
    if entry.status == "cancelled":
        return ItemDecision(tool_call_id=call, decision="reject", reason=ABANDONED)
    given = parse(CallAnswer, entry.payload, what="resume.payload")
    if not given.approved:
        return ItemDecision(tool_call_id=call, decision="reject", reason=given.reason)
    return ItemDecision(tool_call_id=call, decision="approve", arguments=given.arguments, reason=given.reason)


def _call_message(item: dict[str, Any]) -> str:
    preview = item["preview"]
    subject = next((preview[name] for name in ("command", "url", "path", "text") if preview.get(name)), None)
    return f"Allow {item['name']}?" if subject is None else f"Allow {item['name']}: {subject}"


def _answer_schema(*, editable: bool) -> dict[str, Any]:
    properties: dict[str, Any] = {
        "approved": {"type": "boolean"},
        "reason": {"type": "string", "maxLength": 2000},
    }
    if editable:
        properties["arguments"] = {
            "type": "object",
            "description": "Arguments in place of the requested ones, complete.",
        }
    return {
        "type": "object",
        "properties": properties,
        "required": ["approved"],
        "additionalProperties": False,
    }
