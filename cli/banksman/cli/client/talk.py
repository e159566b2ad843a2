"""Send a message, show what happens, ask the person what needs asking, until the run ends."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from banksman.cli import output
from banksman.cli.client.session import Frame, Session
from banksman.cli.client.view import View
from banksman.cli.output import Exit

Verdict = Literal["approve", "reject"]
Decide = Callable[[Frame], Verdict | None]
"""What is decided of a question; None leaves it open."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended, or why it is not followed any further."""

    status: str
    """Of `run.finished`; `awaiting_approval` when a question was left open."""
    content: str = ""

    @property
    def exit(self) -> Exit:
        """What it means for the command."""
        match self.status:
            case "completed":
                return Exit.OK
            case "failed" | "timed_out":
                return Exit.CRITICAL
            case _:
                return Exit.WARNING


def always(verdict: Verdict) -> Decide:
    """Decide every question alike."""
    return lambda _question: verdict


def ask_person(_question: Frame) -> Verdict | None:
    """Ask on the terminal; nobody there leaves the question open."""
    if not sys.stdin.isatty():
        return None
    while True:
        match input("approve? [y/n, empty leaves it open] ").strip().lower():
            case "y" | "yes":
                return "approve"
            case "n" | "no":
                return "reject"
            case "":
                return None
            case _:
                continue


def follow(session: Session, run_id: str, view: View, decide: Decide) -> Ending:
    """Show a run until it ends, or a question is left open. Ctrl-C cancels the run.

    Raises:
        Unavailable: the connection ended; the run goes on.
        GatewayRefused: a decision was not accepted.
    """
    while True:
        try:
            return _follow(session, run_id, view, decide)
        except KeyboardInterrupt:
            output.complain("\ncancelling the run")
            session.ask("run.cancel", run_id=run_id, reason="the user pressed Ctrl-C")


def _follow(session: Session, run_id: str, view: View, decide: Decide) -> Ending:
    for frame in session.frames():
        view.show(frame)
        if frame.get("run_id") != run_id:
            continue
        match frame["type"]:
            case "approval.requested" if not _decided(session, frame["data"], decide):
                return Ending("awaiting_approval")
            case "run.finished":
                return Ending(str(frame["data"]["status"]), str(frame["data"].get("content") or ""))
            case _:
                continue
    raise AssertionError("frames end only by an exception")


def _decided(session: Session, question: Frame, decide: Decide) -> bool:
    """Have a question decided; False when it is left open."""
    verdict = decide(question)
    if verdict is None:
        output.complain(f"waits for: banksman approve {question['approval_id']}")
        return False
    session.ask("approval.reply", approval_id=question["approval_id"], all=verdict)
    return True


def converse(session: Session, conversation_id: str, view: View, decide: Decide) -> Exit:
    """Take messages from the terminal, one after the other, until there are no more."""
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # line editing in `input`
    while True:
        try:
            text = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            output.say()
            return Exit.OK
        if text:
            sent = session.ask("chat.send", conversation_id=conversation_id, content=text)
            follow(session, str(sent["run_id"]), view, decide)
