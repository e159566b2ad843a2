"""Follow runs on a terminal: show their events and decide their approval requests."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable
from typing import Literal, cast

from banksman.bus.errors import RemoteError
from banksman.cli import output
from banksman.cli.client.gateway import Frame, FrameSession
from banksman.cli.client.options import parse_value
from banksman.cli.client.view import View, shown_digests
from banksman.cli.output import Exit, prompt, typed
from banksman.contracts.errors import BadInput, ErrorCode
from banksman.contracts.wire import has_lone_surrogate

Verdict = Literal["approve", "reject"]
Decide = Callable[[Frame], Verdict | None]
"""Returns the decision on an approval request; None leaves it open."""


_EXITS = {"completed": Exit.OK, "failed": Exit.CRITICAL, "timed_out": Exit.CRITICAL}
"""Exit codes by status of a run; the others are warnings."""


def always(verdict: Verdict) -> Decide:
    return lambda _request: verdict


def ask_user(_request: Frame) -> Verdict | None:
    if not sys.stdin.isatty():
        return None
    while True:
        match prompt("approve? [y/n, Enter leaves it open] "):
            case "y" | "yes":
                return "approve"
            case "n" | "no":
                return "reject"
            case "":
                return None
            case _:
                continue


def follow(session: FrameSession, run_id: str, view: View, decide: Decide) -> Exit:
    """Show a run until it finishes or one of its requests is left open. Ctrl-C cancels the run."""
    followed = {run_id}
    while True:
        try:
            return _follow(session, run_id, followed, view, decide)
        except KeyboardInterrupt:
            output.print_error("\ncancelling the run")
            session.request("run.cancel", run_id=run_id, reason="the user pressed Ctrl-C")


def _follow(session: FrameSession, run_id: str, followed: set[str], view: View, decide: Decide) -> Exit:
    """Follow a run and the agent runs that it starts, whose ids are added to `followed`."""
    for frame in session.frames():
        view.show(frame)
        if frame.get("run_id") not in followed:
            continue
        data: Frame = frame.get("data") or {}
        match frame["type"]:
            case "approval.requested" if not _decided(session, data, view, decide):
                return Exit.WARNING
            case "input.requested" if not _provided(session, data):
                return Exit.WARNING
            case "workflow.linked":
                followed.add(data["workflow_run_id"])
                session.subscribe(data["workflow_conversation_id"], after_seq=0)
            case "run.finished" if frame["run_id"] == run_id:
                return _EXITS.get(data["status"], Exit.WARNING)
            case _:
                continue
    raise AssertionError("frames() ends only with an exception")


def _decided(session: FrameSession, request: Frame, view: View, decide: Decide) -> bool:
    verdict = decide(request)
    if verdict is None:
        output.print_error(f"waiting for you: banksman approve {request['approval_id']}")
        return False
    digests = shown_digests(request)
    try:
        session.request("approval.reply", approval_id=request["approval_id"], all=verdict, digests=digests)
    except RemoteError as refused:
        if (current := changed_content(refused)) is None:
            raise
        # Another user approved it otherwise since: this user sees that before the decision.
        view.show({"type": "approval.requested", "data": current})
        return _decided(session, current, view, decide)
    return True


def changed_content(refused: RemoteError) -> Frame | None:
    """Return the current content of an approval request, if that is why a decision was refused."""
    return cast(Frame | None, (refused.frame.details or {}).get("approval"))


def _provided(session: FrameSession, request: Frame) -> bool:
    # The form of a server is an object, so this letter is no value.
    declinable = request.get("server") is not None
    hint = "value [Enter leaves it open, d declines] " if declinable else "value [Enter leaves it open] "
    while sys.stdin.isatty() and (text := typed(hint)):
        declines = declinable and text == "d"
        reply = {"decline": True} if declines else {"value": parse_value(text, request["schema"])}
        try:
            session.request("input.reply", request_id=request["request_id"], **reply)
            return True
        except RemoteError as refused:
            if refused.code != ErrorCode.BAD_REQUEST:
                raise
            output.print_error(str(refused))
    output.print_error(f"waiting for you: banksman provide {request['request_id']} VALUE")
    return False


def check_message(text: str) -> str:
    """Return the message; raise `BadInput` if it is empty, or contains bytes that are no text."""
    if not text.strip():
        raise BadInput("message", text, "text; nothing was sent")
    # Python decodes a byte that is no text to a lone surrogate.
    if has_lone_surrogate(text):
        raise BadInput("message", None, "valid UTF-8; nothing was sent")
    return text


def _is_sendable(text: str) -> bool:
    try:
        check_message(text)
    except BadInput as error:
        output.print_error(str(error))
        return False
    return True


def chat_loop(session: FrameSession, conversation_id: str, view: View, decide: Decide) -> Exit:
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # enables line editing in `input`
    while True:
        try:
            # Without a terminal, standard output consists of events alone.
            text = input("> " if sys.stdout.isatty() else "").strip()
        except (EOFError, KeyboardInterrupt):
            output.print_error("")
            return Exit.OK
        if text and _is_sendable(text):
            sent = session.request("chat.send", conversation_id=conversation_id, content=text)
            follow(session, str(sent["run_id"]), view, decide)
