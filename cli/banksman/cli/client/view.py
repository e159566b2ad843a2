"""Output of events: text for a terminal, or JSON."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, cast

from banksman.cli import output
from banksman.cli.client.gateway import Frame
from banksman.contracts.approvals import Remember, sent_digest
from banksman.contracts.ids import digest
from banksman.contracts.tools import NetworkPolicy, call_digest
from banksman.contracts.visible import one_line, visible, visible_json
from banksman.contracts.workflows import INPUT_CALL

_RESULT_CHARS = 2_000


class JsonView:
    def show(self, frame: Frame) -> None:
        output.print_json(frame)

    def note_open(self, subscribed: Frame) -> None:
        """Do nothing: the events name the open requests."""


class TextView:
    def __init__(self, *, history: bool = False) -> None:
        """Create a view; with `history`, it prints the user's messages too."""
        self._history = history
        self._written: dict[str, str] = {}
        self._open_line = False
        self._last_message = ""
        """The text of the last complete message of a model or workflow."""
        self._last_at = ""
        self._open: dict[str, tuple[str, str]] = {}
        """Open requests by id: the run, and the command that decides the request."""
        self._input_calls: dict[str, str] = {}
        """Lines by call id, held until an event shows whether the call only records a requested value."""

    def show(self, frame: Frame) -> None:
        """Print a frame; ignore unknown types."""
        data: Frame = frame.get("data") or {}
        self._show_held_calls(str(frame["type"]), data)
        match frame["type"]:
            case "tool_call.requested" if data["name"] == INPUT_CALL:
                self._input_calls[str(data["tool_call_id"])] = _called(data)
            case "message.delta":
                self._delta(data)
            case "message.completed":
                self._message(data)
            case "run.started" if self._history:
                self._line(_quoted(data.get("message")))
            case "run.queued":
                self._queued(data)
            case "approval.requested":
                self._request(data)
            case "run.finished":
                self._finished(data)
            case "history.cut":
                self._cut(data)
            case other:
                if (line := _one_line(other, data)) is not None:
                    self._line(line)
        self._note_request(frame)
        if "seq" in frame:
            self._last_at = str(frame.get("ts") or "")

    def note_open(self, subscribed: Frame) -> None:
        """Note the open requests of a conversation from its `subscribed` frame, without printing them."""
        for type, requests in (
            ("approval.requested", subscribed.get("pending_approvals")),
            ("input.requested", subscribed.get("pending_inputs")),
        ):
            for request in requests or ():
                self._note_request({"type": type, "run_id": request.get("run_id"), "data": request})

    def _note_request(self, frame: Frame) -> None:
        data: Frame = frame.get("data") or {}
        run_id = str(frame.get("run_id"))
        match frame["type"]:
            case "approval.requested":
                self._open[str(data["approval_id"])] = run_id, f"banksman approve {data['approval_id']}"
            case "input.requested" if "request_id" in data:
                self._open[str(data["request_id"])] = run_id, f"banksman provide {data['request_id']} VALUE"
            case "approval.resolved" | "input.resolved":
                self._open.pop(str(data.get("approval_id") or data.get("request_id")), None)
            case "run.finished":
                self._open = {id: one for id, one in self._open.items() if one[0] != run_id}
            case _:
                pass

    def _queued(self, data: Frame) -> None:
        if self._history:
            self._line(_quoted(data.get("message")))
        self._line(f"· queued; runs before it: {data.get('position')}")
        for _, command in self._open.values():
            self._line(f"  waiting for you: {command}")

    def _show_held_calls(self, type: str, data: Frame) -> None:
        """Print the held calls, except one that only records a workflow's request for a value."""
        if type == "input.requested":
            self._input_calls.pop(str(data.get("tool_call_id")), None)
        elif type != "tool_call.requested":
            for line in self._input_calls.values():
                self._line(line)
            self._input_calls.clear()

    def _delta(self, data: Frame) -> None:
        """Print the new part of a text. A different text, after a repeated model request, gets a new line."""
        message_id, offset, text = str(data["message_id"]), int(data["offset"]), str(data["text"])
        written = self._written.get(message_id, "")
        if offset > len(written):
            return  # A piece is missing; the complete message contains the rest.
        known = written[offset : offset + len(text)]
        if text.startswith(known):
            self._write(text[len(known) :])
            self._written[message_id] = written + text[len(known) :]
        elif offset == 0:
            self._end_line()
            self._write(text)
            self._written[message_id] = text

    def _message(self, data: Frame) -> None:
        if data.get("role") == "user":
            self._line(_quoted(data.get("content")))
            return
        text = _text(data.get("content"))
        self._last_message = text
        written = self._written.pop(str(data["message_id"]), "")
        if not text.startswith(written):
            # The model request was repeated, and the recorded reply differs from the printed one.
            self._end_line()
            written = ""
        self._write(text[len(written) :])
        self._end_line()

    def _request(self, data: Frame) -> None:
        for line in (f"? approval {data['approval_id']}", *request_lines(data)):
            self._line(line)

    def _finished(self, data: Frame) -> None:
        self._end_line()
        error: Frame = data.get("error") or {}
        content = data.get("content") or ""
        if content not in ("", self._last_message, error.get("message")):
            self._line(str(content))
        if data["status"] != "completed":
            reason = f": {error['message']}" if error.get("message") else ""
            self._line(one_line(f"· run {data['status']}{reason}"))

    def _cut(self, data: Frame) -> None:
        since = f"events after {self._last_at}" if self._last_at else "events at this point"
        aside = f"; an operator set {data['set_aside']} later events aside" if data.get("set_aside") else ""
        self._line(f"! part of this conversation was lost: {since} are missing, also for the agent{aside}")

    def _line(self, text: str) -> None:
        self._end_line()
        output.print_text(text)

    def _write(self, text: str) -> None:
        if text:
            sys.stdout.write(visible(text))
            sys.stdout.flush()
            self._open_line = not text.endswith("\n")

    def _end_line(self) -> None:
        if self._open_line:
            output.print_line()
            self._open_line = False


View = JsonView | TextView


def _one_line(type: str, data: Frame) -> str | None:
    match type:
        case "tool_call.requested":
            return _called(data)
        case "tool_call.completed":
            return f"  {_result(data)}"
        case "protocol.retry":
            return one_line(f"· retried the model request: {data.get('error')}")
        case "model.notice":
            return one_line(f"· {data.get('text')}")
        case "model.waiting":
            cause, seconds = str(data["reason"]).replace("_", " "), round(data["next_attempt_s"])
            return f"· model {cause}; next attempt in {seconds} s: {one_line(str(data['error']))}"
        case "approval.resolved":
            return f"· approval {data['outcome']} by {one_line(str(data.get('by')))}"
        case "input.requested":
            return one_line(f"? {asked_by(data)}{data['message']}")
        case "workflow.progress":
            return one_line(f"· {data['step']}/{data['total']} {data['message']}")
        case _:
            return None


def asked_by(request: Mapping[str, Any]) -> str:
    """Return who receives a requested value, unless it is a workflow."""
    server = request.get("server")
    return f"The MCP server {server} asks (it receives the value; no secrets): " if server else ""


def _quoted(content: object) -> str:
    """Return a user's message, none of whose lines looks like another event."""
    return "\n".join(f"> {line}" for line in _text(content).split("\n"))


def _called(data: Frame) -> str:
    return f"· {one_line(data['name'])} {visible_json(data.get('arguments'))}"


def request_lines(request: Frame) -> list[str]:
    """Return all that a decision covers: the calls as they run, and what a first user approved."""
    lines = [f"    {line}" for item in request["items"] for line in _call_lines(item)]
    first: Frame | None = request.get("first")
    if first is None:
        return lines
    lines += [f"    approved by {one_line(first['by'])}; another user must approve the same calls"]
    if first.get("remember"):
        lines += [f"    and remember it for this {first['remember']}"]
    refused = [one["tool_call_id"] for one in first["decisions"] if one["decision"] == "reject"]
    lines += [
        f"    rejected: {one_line(one['name'])}" for one in request["items"] if one["tool_call_id"] in refused
    ]
    return [*lines, f"    banksman approve {request['approval_id']} --seen {seen_digest(request)}"]


def seen_digest(request: Frame) -> str:
    """Return the digest of the content of a request, for a user to name it."""
    return digest("\n".join(shown_digests(request)).encode())[:16]


def shown_digests(request: Frame) -> list[str]:
    """Return the digests of the items as they are shown: a decision on other content is refused."""
    first: Frame = request.get("first") or {}
    decided: dict[str, Frame] = {one["tool_call_id"]: one for one in first.get("decisions", ())}
    return [
        _sent(item, decided.get(item["tool_call_id"], {}), first.get("remember")) for item in request["items"]
    ]


def _sent(item: Frame, given: Frame, remember: Remember | None) -> str:
    decision = given.get("decision", "approve")
    return sent_digest(_call_digest(item), decision, remember, given.get("covers"), given.get("on_reject"))


def _call_digest(item: Frame) -> str:
    network = item.get("network")
    policy = None if network is None else NetworkPolicy.model_validate(network)
    return call_digest(item["name"], item["arguments"], policy)


def _call_lines(item: Frame) -> list[str]:
    network: Frame = item.get("network") or {}
    hosts = f"  hosts: {visible_json(network)}" if network else ""
    lines = [f"{one_line(item['name'])} {visible_json(item['arguments'])}{hosts}"]
    if "requested" in item:
        lines += [f"  requested: {visible_json(item['requested'])}"]
    if covers := item.get("covers"):
        lines += [f"  if remembered, it applies to {one_line(covers['words'])}"]
    return lines


def _text(content: Any) -> str:
    parts = cast(list[Frame], content) if isinstance(content, list) else [{"text": content or ""}]
    return "\n".join(str(part.get("text", f"[{part.get('type')}]")) for part in parts)


def _result(data: Frame) -> str:
    text = _readable(data.get("content"))
    shown = (text if len(text) <= _RESULT_CHARS else f"{text[:_RESULT_CHARS]}…").rstrip()
    mark = f"[{data.get('error_kind') or 'error'}] " if data.get("is_error") else ""
    return f"{mark}{shown}".replace("\n", "\n  ")


def _readable(content: Any) -> str:
    """Return a result as text: output and exit code of a command, otherwise the text or the JSON."""
    if not isinstance(content, dict):
        return str(content)
    result = cast(Frame, content)
    if "stdout" not in result:
        return visible_json(result)
    wrote = f"{result['stdout']}{result.get('stderr') or ''}".rstrip()
    code = result.get("exit_code")
    # A command that was cancelled has no exit code.
    return wrote if code is None else f"{wrote}\n[exit code {code}]".lstrip()
