"""Converts event frames to the updates of a task. Pure.

Text is streamed as the model writes it, each message as an artifact. An event without a counterpart becomes
the metadata of a status update, so that no event is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from banksman.contracts.events import ApprovalRequested, InputRequested
from banksman.gateway.interfaces.a2a.tasks import (
    OWN,
    agent_message,
    artifact,
    request_message,
    text_part,
)
from banksman.gateway.live.growing_text import GrowingText
from banksman.gateway.live.open_requests import OpenRequests
from banksman.gateway.runs.task_states import JsonDict, status


@dataclass(slots=True)
class TaskUpdates:
    """Maps the frames of one run, in their order."""

    run_id: str
    conversation_id: str
    open_requests: OpenRequests
    complete: bool = False
    """Whether no update follows, because the task has ended or waits for a user."""
    _text: GrowingText | None = None
    _last_text: str = ""

    def of(self, frame: dict[str, Any]) -> list[JsonDict]:
        """Return the updates of the next frame."""
        kind, data = frame["type"], frame.get("data", {})
        match kind:
            case "message.delta":
                return self._delta(data)
            case "message.completed" if data["role"] == "assistant":
                return self._message(data)
            case "run.started":
                return [self._status("running")]
            case "approval.requested" if self.open_requests.waits(frame, data["approval_id"]):
                return self._asks("awaiting_approval", ApprovalRequested.model_validate(data))
            case "input.requested" if self.open_requests.waits(frame, data["request_id"]):
                return self._asks("awaiting_input", InputRequested.model_validate(data))
            case "run.finished":
                return self._finished(data)
            case "resync_required":
                return []
            case _:
                return [self._status("running", metadata={"type": kind, **data})]

    def _delta(self, data: dict[str, Any]) -> list[JsonDict]:
        if self._text is None or self._text.message_id != data["message_id"]:
            self._text = GrowingText(data["message_id"])
        begins = not self._text.sent
        new = self._text.new(data["offset"], data["text"])
        return [self._artifact(data["message_id"], new, append=not begins, last=False)] if new else []

    def _message(self, data: dict[str, Any]) -> list[JsonDict]:
        id, content = data["message_id"], data["content"] or ""
        text = self._text if self._text is not None and self._text.message_id == id else GrowingText(id)
        self._text, self._last_text = None, content
        # The frame of a long message has a truncated text, and the deltas were complete.
        rest = "" if data.get("truncated") and text.sent else text.rest(content)
        return [self._artifact(id, rest, append=bool(text.sent), last=True)] if text.sent or rest else []

    def _asks(self, run_status: str, asked: ApprovalRequested | InputRequested) -> list[JsonDict]:
        self.complete = True
        return [self._status(run_status, request_message(asked, self.run_id, self.conversation_id))]

    def _finished(self, data: dict[str, Any]) -> list[JsonDict]:
        self.complete = True
        run_status, content, updates = data["status"], data["content"], list[JsonDict]()
        message = None
        if run_status != "completed":
            parts = [text_part(content)]
            message = agent_message(f"{self.run_id}-outcome", parts, self.run_id, self.conversation_id)
        elif content and content != self._last_text:
            updates.append(self._artifact("outcome", content, append=False, last=True))
        details = {name: value for name, value in data.items() if name != "content"}
        return [*updates, self._status(run_status, message, metadata=details)]

    def _status(
        self, run_status: str, message: JsonDict | None = None, metadata: JsonDict | None = None
    ) -> JsonDict:
        update: JsonDict = {**self._ids(), "status": status(run_status, message=message)}
        return {"statusUpdate": update if metadata is None else {**update, "metadata": {OWN: metadata}}}

    def _artifact(self, id: str, text: str, *, append: bool, last: bool) -> JsonDict:
        more = {"append": append, "lastChunk": last}
        return {"artifactUpdate": {**self._ids(), "artifact": artifact(id, text), **more}}

    def _ids(self) -> JsonDict:
        return {"taskId": self.run_id, "contextId": self.conversation_id}
