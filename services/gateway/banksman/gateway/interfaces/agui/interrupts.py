"""Converts approval requests and requests for a value to AG-UI interrupts, and responses to client frames.

https://docs.ag-ui.com/spec/1.0/basic/patterns/interrupt-resume
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from banksman.contracts.approvals import ItemDecision
from banksman.contracts.errors import BadInput
from banksman.contracts.frames import ApprovalDecision, InputReply
from banksman.contracts.ids import is_token
from banksman.contracts.visible import one_line
from banksman.contracts.wire import parse
from banksman.gateway.conversations.view import ConversationView
from banksman.gateway.interfaces.agui.messages import CallAnswer, ResumeEntry

ABANDONED = "The user abandoned the request."


def approval_interrupts(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one interrupt `APPROVAL/CALL` for each call, from the data of `approval.requested`."""
    approval_id = data["approval_id"]
    return [
        {
            "id": "/".join(
                (approval_id, item["tool_call_id"], *([item["digest"]] if data.get("first") else []))
            ),
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
        "id": data["request_id"],
        "reason": "input_required",
        "message": data["message"],
        "responseSchema": data["schema"],
    }
    expires = data.get("expires_at")
    return interrupt if expires is None else {**interrupt, "expiresAt": expires}


def answer(
    entries: Iterable[ResumeEntry], request_id: str, view: ConversationView
) -> ApprovalDecision | InputReply:
    """Return the frame that responds to the interrupts of one request, of which there is at least one."""
    answers = [(*_ids_in(entry.interrupt_id), entry) for entry in entries]
    asked, first_call, _, entry = answers[0]
    if any(id != asked for id, _, _, _ in answers):
        raise BadInput("resume", len(answers), "answers to the interrupts of one run")
    if not first_call:
        if entry.status == "cancelled":
            raise BadInput("resume.status", entry.status, "a value, or the cancellation of the run")
        return InputReply(type="input.reply", id=request_id, request_id=asked, value=entry.payload)
    open_ = view.approvals.get(asked)
    calls = [item.tool_call_id for item in open_.requested.items] if open_ else []
    digests = {call: digest for _, call, digest, _ in answers if digest}
    return ApprovalDecision(
        type="approval.reply",
        id=request_id,
        approval_id=asked,
        decisions=tuple(_decision(call, entry) for _, call, _, entry in answers),
        digests=tuple(digests[call] for call in calls if call in digests),
    )


def _ids_in(interrupt_id: str) -> tuple[str, str, str]:
    """Return the ids of request and call, and a digest; raise `BadInput` for another text.

    A requested value has no call. Only after the first of two approvals there is a digest, so that the
    response names what was sent. A missing part is empty.
    """
    parts = interrupt_id.split("/")
    if len(parts) > 3 or not all(map(is_token, parts)):
        raise BadInput("resume.interruptId", interrupt_id, "the id of an interrupt of this thread")
    request_id, call, digest = (*parts, "", "")[:3]
    return request_id, call, digest


def _decision(call: str, entry: ResumeEntry) -> ItemDecision:
    if entry.status == "cancelled":
        return ItemDecision(tool_call_id=call, decision="reject", reason=ABANDONED)
    given = parse(CallAnswer, entry.payload, what="resume.payload")
    if not given.approved:
        return ItemDecision(tool_call_id=call, decision="reject", reason=given.reason)
    return ItemDecision(tool_call_id=call, decision="approve", arguments=given.arguments, reason=given.reason)


def _call_message(item: dict[str, Any]) -> str:
    preview = item["preview"]
    subject = next((preview[name] for name in ("command", "url", "path", "text") if preview.get(name)), None)
    name = one_line(item["name"])
    return f"Allow {name}?" if subject is None else f"Allow {name}: {subject}"


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
