"""Converts runs to tasks, and event frames to the updates of a task. Pure.

A task's artifacts are the messages of the agent; an artifact has the id of its message. Text is sent while
the model writes it. An event without a counterpart becomes the metadata of a status update, so that no event
is lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from banksman.contracts.approvals import ApprovalRequested, InputRequested
from banksman.contracts.events import Event, MessageCompleted, RunFinished, RunQueued, RunStarted
from banksman.contracts.messages import Content, text_of
from banksman.contracts.visible import one_line
from banksman.gateway.conversations.view import ConversationView, RunView
from banksman.gateway.live.followed_runs import GrowingText, OpenRequests
from banksman.gateway.runs.bodies import JsonDict, Run, status

OWN = "banksman"
"""The key of Banksman's own fields in metadata."""


def task(
    run: Run | RunView, view: ConversationView, events: Iterable[Event], conversation_id: str
) -> JsonDict:
    own = [event for event in events if event.run_id == run.run_id]
    outcome = next((event.data for event in own if isinstance(event.data, RunFinished)), None)
    artifacts, history = _artifacts(own, outcome), _history(own, run.run_id, conversation_id)
    waiting = _waiting(run, view)
    message = None
    if waiting is not None:
        message = _request_message(waiting, run.run_id, conversation_id)
    elif outcome is not None and outcome.status != "completed":
        message = _outcome_message(outcome.content, run.run_id, conversation_id)
    body: JsonDict = {
        "id": run.run_id,
        "contextId": conversation_id,
        "status": status(run.status, run.finished_at or run.started_at or run.asked_at, message),
        "metadata": {OWN: {"status": run.status, "iterations": run.iterations}},
    }
    if artifacts:
        body["artifacts"] = artifacts
    if history:
        body["history"] = history
    return body


def _request_message(
    asked: ApprovalRequested | InputRequested, run_id: str, conversation_id: str
) -> JsonDict:
    if isinstance(asked, ApprovalRequested):
        text = "Decide about " + ", ".join(
            _described(item.name, item.preview.command) for item in asked.items
        )
        data = {"approval": asked.model_dump(mode="json", exclude={"type"})}
        id = asked.approval_id
    else:
        text, id = asked.message, asked.request_id
        data = {"input": asked.model_dump(mode="json", by_alias=True, exclude={"type"})}
    return _message(id, [{"text": text}, {"data": data}], run_id, conversation_id)


def _message(
    id: str, parts: list[JsonDict], run_id: str, conversation_id: str, role: str = "ROLE_AGENT"
) -> JsonDict:
    return {"messageId": id, "role": role, "parts": parts, "taskId": run_id, "contextId": conversation_id}


def _outcome_message(text: str, run_id: str, conversation_id: str) -> JsonDict:
    return _message(f"{run_id}-outcome", [{"text": text}], run_id, conversation_id)


def _artifact(id: str, text: str) -> JsonDict:
    return {"artifactId": id, "parts": [{"text": text}]}


def _structured_artifact(output: JsonDict) -> JsonDict:
    return {"artifactId": "structured_output", "parts": [{"data": output}]}


def _waiting(run: Run | RunView, view: ConversationView) -> ApprovalRequested | InputRequested | None:
    asked = (*view.approvals.values(), *view.inputs.values())
    return next((one.requested for one in asked if one.run_id == run.run_id), None)


def _artifacts(events: Iterable[Event], outcome: RunFinished | None) -> list[JsonDict]:
    texts = {
        event.data.message_id: text_of(event.data.content)
        for event in events
        if isinstance(event.data, MessageCompleted) and event.data.role == "assistant" and event.data.content
    }
    found = [_artifact(id, text) for id, text in texts.items()]
    if outcome is not None and outcome.status == "completed" and outcome.content:
        if not texts or outcome.content != list(texts.values())[-1]:
            found.append(_artifact("outcome", outcome.content))
    if outcome is not None and outcome.structured_output is not None:
        found.append(_structured_artifact(outcome.structured_output))
    return found


def _history(events: Iterable[Event], run_id: str, conversation_id: str) -> list[JsonDict]:
    found: dict[str, Content] = {}
    for event in events:
        match event.data:
            case RunQueued(message_id=id, message=content) | RunStarted(message_id=id, message=content):
                found[id] = content
            case MessageCompleted(message_id=id, role="user", content=content) if content is not None:
                found[id] = content
            case _:
                continue
    return [
        _message(id, [{"text": text_of(content)}], run_id, conversation_id, "ROLE_USER")
        for id, content in found.items()
    ]


def _described(name: str, command: str | None) -> str:
    return one_line(name) if command is None else f"{one_line(name)}: {command}"


@dataclass(slots=True)
class TaskUpdates:
    run_id: str
    conversation_id: str
    open_requests: OpenRequests
    complete: bool = False
    """Whether no update follows, because the task has ended or waits for a user."""
    _text: GrowingText | None = None
    _last_text: str = ""

    def of(self, frame: dict[str, Any]) -> list[JsonDict]:
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
        return [self._status(run_status, _request_message(asked, self.run_id, self.conversation_id))]

    def _finished(self, data: dict[str, Any]) -> list[JsonDict]:
        self.complete = True
        run_status, content, updates = data["status"], data["content"], list[JsonDict]()
        message = None
        if run_status != "completed":
            message = _outcome_message(content, self.run_id, self.conversation_id)
        elif content and content != self._last_text:
            updates.append(self._artifact("outcome", content, append=False, last=True))
        if output := data.get("structured_output"):
            artifact = _structured_artifact(output)
            updates.append({"artifactUpdate": {**self._ids(), "artifact": artifact, "lastChunk": True}})
        details = {
            name: value for name, value in data.items() if name not in ("content", "structured_output")
        }
        return [*updates, self._status(run_status, message, metadata=details)]

    def _status(
        self, run_status: str, message: JsonDict | None = None, metadata: JsonDict | None = None
    ) -> JsonDict:
        update: JsonDict = {**self._ids(), "status": status(run_status, message=message)}
        return {"statusUpdate": update if metadata is None else {**update, "metadata": {OWN: metadata}}}

    def _artifact(self, id: str, text: str, *, append: bool, last: bool) -> JsonDict:
        more = {"append": append, "lastChunk": last}
        return {"artifactUpdate": {**self._ids(), "artifact": _artifact(id, text), **more}}

    def _ids(self) -> JsonDict:
        return {"taskId": self.run_id, "contextId": self.conversation_id}
