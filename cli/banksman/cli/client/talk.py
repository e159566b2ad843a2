"""Follow runs on a terminal: show their events and decide their approval requests."""

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
from banksman.cli.prompts import prompt
from banksman.contracts.network import NetworkPolicy
from banksman.contracts.tools import call_digest

Verdict = Literal["approve", "reject"]
Decide = Callable[[Frame], Verdict | None]
"""Returns the decision on an approval request; None leaves it open."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Why following a run ended."""

    status: str
    """Status of `run.finished`; `awaiting_approval` if an approval request was left open."""
    content: str = ""

    @property
    def exit(self) -> Exit:
        """The command's exit code."""
        match self.status:
            case "completed":
                return Exit.OK
            case "failed" | "timed_out":
                return Exit.CRITICAL
            case _:
                return Exit.WARNING


def always(verdict: Verdict) -> Decide:
    """Return a function that decides every approval request in the same way."""
    return lambda _request: verdict


def ask_user(_request: Frame) -> Verdict | None:
    """Ask the user on the terminal; without a terminal, leave the approval request open."""
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


def follow(session: Session, run_id: str, view: View, decide: Decide) -> Ending:
    """Show a run until it finishes or an approval request is left open. Ctrl-C cancels the run.

    Raises:
        Unavailable: the connection closed; the run continues.
        GatewayRefused: the gateway refuses a decision.
    """
    while True:
        try:
            return _follow(session, run_id, view, decide)
        except KeyboardInterrupt:
            output.print_error("\ncancelling the run")
            session.request("run.cancel", run_id=run_id, reason="the user pressed Ctrl-C")


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
    raise AssertionError("frames() ends only with an exception")


def _decided(session: Session, request: Frame, decide: Decide) -> bool:
    """Decide an approval request; return False if it is left open."""
    verdict = decide(request)
    if verdict is None:
        output.print_error(f"waiting for: banksman approve {request['approval_id']}")
        return False
    digests = [_shown_digest(item) for item in request["items"]]
    session.request("approval.reply", approval_id=request["approval_id"], all=verdict, digests=digests)
    return True


def _shown_digest(item: Frame) -> str:
    """Return the digest of the call as it was shown, so that a decision on any other call is refused."""
    network = item.get("network")
    policy = None if network is None else NetworkPolicy.model_validate(network)
    return call_digest(item["name"], item["arguments"], policy)


def chat_loop(session: Session, conversation_id: str, view: View, decide: Decide) -> Exit:
    """Read messages from the terminal and follow their runs, until the end of input."""
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")  # enables line editing in `input`
    while True:
        try:
            # Without a terminal, standard output consists of events alone.
            text = input("> " if sys.stdout.isatty() else "").strip()
        except (EOFError, KeyboardInterrupt):
            output.print_error("")
            return Exit.OK
        if text:
            sent = session.request("chat.send", conversation_id=conversation_id, content=text)
            follow(session, str(sent["run_id"]), view, decide)
