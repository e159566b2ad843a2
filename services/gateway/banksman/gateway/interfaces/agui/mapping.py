"""Converts event frames to AG-UI events. Pure.

An event without a counterpart becomes a `CUSTOM` event with its type as name, so that no event is lost.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from banksman.gateway.interfaces.agui.messages import AguiMessage, approval_interrupts, input_interrupt
from banksman.gateway.live.followed_runs import GrowingText, OpenRequests

PROTOCOL_VERSION = "1.0"
"""https://docs.ag-ui.com/spec/1.0/basic/versioning"""
OWN = "banksman"
"""The key of Banksman's own fields in a state and in metadata."""
AguiEvent = dict[str, Any]
REPLIED = frozenset({"completed", "rejected", "max_iterations"})
"""Outcomes whose content is a reply."""
ENDED_EARLY = frozenset({"cancelled", "rejected", "max_iterations"})
"""Outcomes of runs that were stopped on purpose and did not fail; AG-UI's outcome is `cancelled`."""


@dataclass(slots=True)
class EventMapper:
    """Maps the frames of one run, in their order, to the events of one AG-UI run."""

    thread_id: str
    agui_run_id: str
    conversation_id: str
    run_id: str | None
    """None if the thread has no open run."""
    state: dict[str, Any] | None
    """The client's state, to which fields of the run are added. None if the client's state is not an object;
    then no state is sent."""
    open_requests: OpenRequests
    status: str = "queued"
    """The status of the run before its first event; `idle` without a run."""
    whole_run: bool = True
    """Whether the frames begin with the first event of the run."""
    ended: bool = False
    """Whether the event that ends the AG-UI run was mapped."""
    _text: GrowingText | None = None
    _reasoning: GrowingText | None = None
    _step: str | None = None
    _parent: str | None = None
    """The last assistant's message, to which calls belong."""
    _last_text: str = ""
    _shown: dict[str, Any] = field(default_factory=dict[str, Any])

    def begin(self, messages: list[AguiMessage] | None, warnings: Iterable[str]) -> list[AguiEvent]:
        """Return the first events.

        Args:
            messages: The messages that replace those of the client; None replaces none.
            warnings: The parts of the input that have no effect.
        """
        own = {"conversation_id": self.conversation_id, "run_id": self.run_id}
        started = self._of_run("RUN_STARTED", protocolVersion=PROTOCOL_VERSION, metadata={OWN: own})
        events: list[AguiEvent] = [started]
        if self.state is not None:
            self._shown = {**own, "status": self.status, "iteration": 0}
            events.append({"type": "STATE_SNAPSHOT", "snapshot": {**self.state, OWN: dict(self._shown)}})
        if messages is not None:
            events.append({"type": "MESSAGES_SNAPSHOT", "messages": messages, "timestamp": _now_ms()})
        return events + [_custom(f"{OWN}.warning", {"message": text}) for text in warnings]

    def events(self, frame: dict[str, Any]) -> list[AguiEvent]:
        stamp = int(datetime.fromisoformat(frame["ts"]).timestamp() * 1000) if "ts" in frame else _now_ms()
        return [{**event, "timestamp": stamp} for event in self._events(frame)]

    def _events(self, frame: dict[str, Any]) -> list[AguiEvent]:
        kind, data = frame["type"], frame.get("data", {})
        match kind:
            case "message.delta":
                return self._delta(data)
            case "reasoning.delta":
                return self._reason(data)
            case "message.completed":
                return self._message(data)
            case "run.started":
                limit = data["limits"]["max_iterations"]
                return self._changed(status="running", model=data["model"], max_iterations=limit)
            case "iteration.started":
                return self._iteration(data["n"])
            case "tool_call.requested":
                return self._call(data)
            case "tool_call.completed":
                return [_tool_result(data)]
            case "approval.requested" if self.open_requests.waits(frame, data["approval_id"]):
                return self._interrupt("awaiting_approval", approval_interrupts(data))
            case "input.requested" if self.open_requests.waits(frame, data["request_id"]):
                return self._interrupt("awaiting_input", [input_interrupt(data)])
            case "run.finished":
                return self._finished(data)
            case "resync_required":
                text = (
                    f"The events cannot be read: {frame['reason']}. A request with the same runId continues."
                )
                return self.fail("unavailable", text)
            case _:
                return [_custom(kind, data)]

    def interrupted(self, interrupts: Iterable[dict[str, Any]]) -> list[AguiEvent]:
        return self._interrupt(self.status, list(interrupts))

    def idle(self) -> list[AguiEvent]:
        self.ended = True
        return [self._run_finished({"type": "success"})]

    def fail(self, code: str, message: str) -> list[AguiEvent]:
        """Return the event that ends the run as failed, and with it open messages and steps."""
        self.ended = True
        return [{"type": "RUN_ERROR", "message": message, "code": code}]

    def _delta(self, data: dict[str, Any]) -> list[AguiEvent]:
        events = self._close_reasoning()
        if self._text is None or self._text.message_id != data["message_id"]:
            events += self._close_text()
            self._text = GrowingText(data["message_id"])
            events.append(_message_start(data["message_id"]))
        if new := self._text.new(data["offset"], data["text"]):
            events.append(_fragment("TEXT_MESSAGE_CONTENT", data["message_id"], new))
        return events

    def _message(self, data: dict[str, Any]) -> list[AguiEvent]:
        id, content = data["message_id"], _plain_text(data["content"])
        if data["role"] == "user":
            return _whole_message(id, content, "user")
        self._parent, self._last_text = id, content
        events = self._close_reasoning()
        if self._text is None or self._text.message_id != id:
            return [*events, *self._close_text(), *(_whole_message(id, content) if content else ())]
        # The frame of a long message has a truncated text, and the deltas were complete.
        if not data.get("truncated") and (rest := self._text.rest(content)):
            events.append(_fragment("TEXT_MESSAGE_CONTENT", id, rest))
        return [*events, *self._close_text()]

    def _reason(self, data: dict[str, Any]) -> list[AguiEvent]:
        id, events = f"{data['message_id']}-reasoning", list[AguiEvent]()
        if self._reasoning is None or self._reasoning.message_id != id:
            events += self._close_reasoning()
            self._reasoning = GrowingText(id)
            events.append({"type": "REASONING_START", "messageId": id})
            events.append({"type": "REASONING_MESSAGE_START", "messageId": id, "role": "reasoning"})
        if new := self._reasoning.new(data["offset"], data["text"]):
            events.append(_fragment("REASONING_MESSAGE_CONTENT", id, new))
        return events

    def _iteration(self, n: int) -> list[AguiEvent]:
        events = self._close_step()
        self._step = f"iteration {n}"
        return [*events, {"type": "STEP_STARTED", "stepName": self._step}, *self._changed(iteration=n)]

    def _call(self, data: dict[str, Any]) -> list[AguiEvent]:
        id = data["tool_call_id"]
        start: AguiEvent = {"type": "TOOL_CALL_START", "toolCallId": id, "toolCallName": data["name"]}
        if self._parent is not None:
            start["parentMessageId"] = self._parent
        arguments = {"type": "TOOL_CALL_ARGS", "toolCallId": id, "delta": json.dumps(data["arguments"])}
        return [start, arguments, {"type": "TOOL_CALL_END", "toolCallId": id}]

    def _interrupt(self, status: str, interrupts: list[dict[str, Any]]) -> list[AguiEvent]:
        self.ended = True
        finished = self._run_finished({"type": "interrupt", "interrupts": interrupts})
        return [*self._close(), *self._changed(status=status), finished]

    def _finished(self, data: dict[str, Any]) -> list[AguiEvent]:
        self.ended = True
        status, content = data["status"], data["content"]
        events = self._close()
        if status in REPLIED and content and content != self._last_text:
            # The log has no message for the result of a call that ends the run, or for the text at a limit.
            events += _whole_message(f"{self.run_id}-outcome", content)
        events += self._changed(status=status)
        usage = _usage_of(data) if self.whole_run else []
        more: AguiEvent = {"usage": usage} if usage else {}
        details = {name: value for name, value in data.items() if name != "content"}
        if status == "completed":
            return [*events, {**self._run_finished({"type": "success"}), "result": data, **more}]
        own = {"metadata": {OWN: details}}
        if status in ENDED_EARLY:
            return [*events, {**self._run_finished({"type": "cancelled"}), **own, **more}]
        error = data["error"] or {"code": status, "message": content}
        text = content or error["message"] or f"The run ended as {status}."
        return [*events, {"type": "RUN_ERROR", "message": text, "code": error["code"], **own, **more}]

    def _run_finished(self, outcome: dict[str, Any]) -> AguiEvent:
        return self._of_run("RUN_FINISHED", outcome=outcome)

    def _of_run(self, kind: str, **fields: Any) -> AguiEvent:
        return {"type": kind, "threadId": self.thread_id, "runId": self.agui_run_id, **fields}

    def _changed(self, **values: Any) -> list[AguiEvent]:
        changed = {name: value for name, value in values.items() if self._shown.get(name) != value}
        if self.state is None or not changed:
            return []
        # `add` replaces a member that exists: https://www.rfc-editor.org/rfc/rfc6902#section-4.1
        patch = [{"op": "add", "path": f"/{OWN}/{name}", "value": value} for name, value in changed.items()]
        self._shown |= changed
        return [{"type": "STATE_DELTA", "delta": patch}]

    def _close(self) -> list[AguiEvent]:
        return [*self._close_reasoning(), *self._close_text(), *self._close_step()]

    def _close_text(self) -> list[AguiEvent]:
        text, self._text = self._text, None
        return [] if text is None else [{"type": "TEXT_MESSAGE_END", "messageId": text.message_id}]

    def _close_reasoning(self) -> list[AguiEvent]:
        reasoning, self._reasoning = self._reasoning, None
        if reasoning is None:
            return []
        id = reasoning.message_id
        return [
            {"type": "REASONING_MESSAGE_END", "messageId": id},
            {"type": "REASONING_END", "messageId": id},
        ]

    def _close_step(self) -> list[AguiEvent]:
        step, self._step = self._step, None
        return [] if step is None else [{"type": "STEP_FINISHED", "stepName": step}]


def _tool_result(data: dict[str, Any]) -> AguiEvent:
    """Return the event of a call's result, from the data of its `tool_call.completed`."""
    details = {name: value for name, value in data.items() if name != "content"}
    return {
        "type": "TOOL_CALL_RESULT",
        "messageId": f"{data['tool_call_id']}-result",
        "toolCallId": data["tool_call_id"],
        "content": json.dumps(data["content"], ensure_ascii=False),
        "role": "tool",
        "metadata": {OWN: details},
    }


def _custom(name: str, value: Any) -> AguiEvent:
    """Return a `CUSTOM` event, to which the protocol gives no meaning."""
    return {"type": "CUSTOM", "name": name, "value": value}


def _whole_message(message_id: str, text: str, role: str = "assistant") -> list[AguiEvent]:
    return [
        _message_start(message_id, role),
        _fragment("TEXT_MESSAGE_CONTENT", message_id, text),
        {"type": "TEXT_MESSAGE_END", "messageId": message_id},
    ]


def _message_start(message_id: str, role: str = "assistant") -> AguiEvent:
    return {"type": "TEXT_MESSAGE_START", "messageId": message_id, "role": role}


def _fragment(kind: str, message_id: str, text: str) -> AguiEvent:
    return {"type": kind, "messageId": message_id, "delta": text}


def _usage_of(data: dict[str, Any]) -> list[dict[str, Any]]:
    usage = data["usage"]
    read, written = usage["input_tokens"], usage["output_tokens"]
    if not read and not written:
        return []
    provider, _, model = data["model"].partition(":")
    counts: dict[str, Any] = {"inputTokens": read, "outputTokens": written, "totalTokens": read + written}
    if usage["cached_tokens"]:
        counts["cachedInputTokens"] = usage["cached_tokens"]
    return [{"provider": provider, "model": model, **counts}]


def _plain_text(content: str | list[dict[str, Any]] | None) -> str:
    if isinstance(content, list):
        return "\n\n".join(part.get("text", "") for part in content)
    return content or ""


def _now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)
