"""Implementation of the client commands."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

from banksman.cli import output
from banksman.cli.client.address import Address
from banksman.cli.client.http import Http
from banksman.cli.client.parameters import read_parameters
from banksman.cli.client.session import Frame, Session
from banksman.cli.client.talk import Decide, Ending, always, ask_user, chat_loop, check_message, follow
from banksman.cli.client.view import JsonView, TextView, View, call_line
from banksman.cli.output import Exit, clean
from banksman.contracts.errors import BadInput, NotFound, Unavailable
from banksman.contracts.frames import Detail
from banksman.contracts.ids import conversation_of
from banksman.runtime.backoff import Backoff

_DEMO = (
    "write Hello from Banksman to notes.txt",
    "run `cat notes.txt && ls -la`",
    "draw a diagram",
)
"""Requests that both the demo model and language models understand."""
_FIRST_RETRY_S = 0.5
_LAST_RETRY_S = 10.0


def chat(
    address: Address,
    *,
    conversation_id: str | None,
    model: str | None,
    assistant: str | None,
    as_json: bool = False,
) -> Exit:
    """Chat in a new or an existing conversation until Ctrl-D."""
    view = _view(as_json)
    with Session.to(address) as session:
        if conversation_id is None:
            conversation_id = session.create(model=model, assistant=assistant)
        else:
            view.note_open(session.subscribe(conversation_id))
        output.print_error(f"conversation {conversation_id}; Ctrl-C cancels a run, Ctrl-D ends the chat")
        return chat_loop(session, conversation_id, view, ask_user)


def run(
    address: Address,
    text: str,
    *,
    conversation_id: str | None = None,
    model: str | None = None,
    assistant: str | None = None,
    verdict: Literal["approve", "reject"] | None = None,
    as_json: bool = False,
) -> Exit:
    """Send one message and follow its run until it finishes.

    Raises:
        BadInput: the message is empty or not valid text; nothing was sent.
    """
    message, view = check_message(text if text != "-" else sys.stdin.read()), _view(as_json)
    with Session.to(address) as session:
        if conversation_id is None:
            conversation_id = session.create(model=model, assistant=assistant)
            if not as_json:
                output.print_error(f"conversation {conversation_id}")
        else:
            view.note_open(session.subscribe(conversation_id))
        sent = session.request("chat.send", conversation_id=conversation_id, content=message)
        return follow(session, str(sent["run_id"]), view, _decide(verdict)).exit


def demo(address: Address, *, as_json: bool = False) -> Exit:
    """Run a sample conversation: a file, a command, an approval request, a diagram."""
    view = _view(as_json, history=True)
    with Session.to(address) as session:
        conversation_id = session.create(title="A first look")
        endings: list[Ending] = []
        for text in _DEMO:
            sent = session.request("chat.send", conversation_id=conversation_id, content=text)
            endings.append(follow(session, str(sent["run_id"]), view, always("approve")))
    if not as_json:
        output.print_line(f"\nThe same in the browser: {address.url}")
    return max(ending.exit for ending in endings)


def tail(
    address: Address, conversation_id: str, *, after_seq: int, detail: Detail, as_json: bool = False
) -> Exit:
    """Show stored and new events until Ctrl-C; reconnect when the connection is lost."""
    follower = _Follower(conversation_id, after_seq, detail, _view(as_json, history=True))
    backoff = Backoff(_FIRST_RETRY_S, _LAST_RETRY_S, spread=0)
    try:
        while True:
            try:
                with Session.to(address) as session:
                    follower.subscribe(session)
                    backoff.reset()
                    follower.show_all(session)
            except Unavailable as error:
                if not follower.subscribed:
                    raise
                pause_s = backoff.next_s()
                output.print_error(f"{error}; retrying in {pause_s:g} s")
                time.sleep(pause_s)
    except KeyboardInterrupt:
        return Exit.OK


def replay(
    address: Address, conversation_id: str, *, after_seq: int, detail: Detail, as_json: bool = False
) -> Exit:
    """Show the stored events of a conversation."""
    follower = _Follower(conversation_id, after_seq, detail, _view(as_json, history=True))
    with Session.to(address) as session:
        follower.subscribe(session)
        follower.show_all(session, until=lambda frame: frame["type"] == "replay.done")
    return Exit.OK


def approvals(address: Address, *, as_json: bool = False) -> Exit:
    """List the open approval requests. The exit code is a warning if there are any."""
    requests = _open_requests(address)
    for request in requests:
        output.print_json(request) if as_json else _show_request(request)
    if not requests and not as_json:
        output.print_line("no open approval requests")
    return Exit.WARNING if requests else Exit.OK


def decide(
    address: Address,
    approval_id: str,
    verdict: Literal["approve", "reject"],
    *,
    reason: str | None = None,
    remember: str | None = None,
    as_json: bool = False,
) -> Exit:
    """Decide all calls of an approval request. The exit code is a warning if it was decided already.

    Raises:
        NotFound: no open approval request with this id (only checked when a reason is given).
        GatewayRefused: the gateway refuses the decision.
    """
    decisions = _decisions(_open_request(address, approval_id), verdict, reason) if reason else None
    with Session.to(address) as session:
        reply = session.request(
            "approval.reply",
            approval_id=approval_id,
            all=None if decisions else verdict,
            decisions=decisions,
            remember=remember,
        )
    late = bool(reply.get("already_resolved"))
    if as_json:
        output.print_json(reply)
    elif reply.get("outcome") == "awaiting_second":
        output.print_line("approved by you; another user must approve the same calls")
    else:
        outcome = reply.get("outcome") or f"{verdict}d".replace("rejectd", "rejected")
        output.print_line(f"{'already ' if late else ''}{outcome} by {reply.get('resolved_by') or 'you'}")
    return Exit.WARNING if late else Exit.OK


def list_workflows(address: Address, *, as_json: bool = False) -> Exit:
    """List workflows by category."""
    with Http.to(address) as http:
        categories = cast(list[Mapping[str, Any]], http.items("/workflows/categories"))
    for category in categories:
        if not as_json:
            output.print_line(clean(str(category["title"])))
        for workflow in category["workflows"]:
            if as_json:
                output.print_json(workflow)
            else:
                output.print_line(f"  {workflow['name']:<24} {clean(str(workflow['description']))}")
    return Exit.OK


def run_workflow(address: Address, name: str, given: list[str], *, as_json: bool = False) -> Exit:
    """Start a workflow and follow its run until it finishes."""
    with Http.to(address) as http:
        parameters = read_parameters(http, name, given)
    with Session.to(address) as session:
        started = session.request("workflow.start", workflow=name, parameters=parameters)
        run_id = str(started["run_id"])
        session.subscribe(conversation_of(run_id), after_seq=0)
        return follow(session, run_id, _view(as_json), ask_user).exit


class _Follower:
    """Shows each event of one conversation once, across reconnects."""

    def __init__(self, conversation_id: str, after_seq: int, detail: Detail, view: View) -> None:
        self.subscribed = False
        self._conversation_id = conversation_id
        self._seq = after_seq
        self._log_epoch: str | None = None
        self._detail: Detail = detail
        self._view = view

    def subscribe(self, session: Session) -> None:
        """Subscribe to the events after the last one that was shown.

        If the log was restored meanwhile, all stored events are shown again.

        Raises:
            BadInput: no stored event has the number that the user gave.
        """
        while (head := self._request(session))["type"] == "resync_required":
            if not self.subscribed:
                number = f"the number of a stored event, or 0; {head['reason']}"
                raise BadInput("--after", self._seq, number)
            self._restart(head)
        self._log_epoch = str(head["log_epoch"])
        self.subscribed = True

    def show_all(self, session: Session, until: Callable[[Frame], bool] | None = None) -> None:
        """Show the conversation's frames until `until` is true for one."""
        for frame in session.frames():
            if frame.get("conversation_id") != self._conversation_id:
                continue
            if until is not None and until(frame):
                return
            if self._is_new(session, frame):
                self._view.show(frame)

    def _request(self, session: Session) -> Frame:
        return session.subscribe(
            self._conversation_id, after_seq=self._seq, log_epoch=self._log_epoch, detail=self._detail
        )

    def _restart(self, resync: Frame) -> None:
        output.print_error(f"{clean(str(resync['reason']))}; showing the conversation from its start")
        self._seq, self._log_epoch = int(resync["oldest_seq"]) - 1, None

    def _is_new(self, session: Session, frame: Frame) -> bool:
        if frame["type"] == "resync_required":
            self._restart(frame)
            self.subscribe(session)
            return False
        seq = frame.get("seq")
        if not isinstance(seq, int) or "prev_seq" not in frame:
            return frame["type"].endswith(".delta")
        if seq <= self._seq:
            return False
        self._seq = seq
        return True


def _view(as_json: bool, *, history: bool = False) -> View:
    return JsonView() if as_json else TextView(history=history)


def _decide(verdict: Literal["approve", "reject"] | None) -> Decide:
    return always(verdict) if verdict else ask_user


def _open_requests(address: Address) -> list[Mapping[str, Any]]:
    with Http.to(address) as http:
        return cast(list[Mapping[str, Any]], http.items("/context/approvals"))


def _open_request(address: Address, approval_id: str) -> Mapping[str, Any]:
    for request in _open_requests(address):
        if request["approval_id"] == approval_id:
            return request
    raise NotFound("open approval", approval_id)


def _decisions(request: Mapping[str, Any], verdict: str, reason: str) -> list[dict[str, str]]:
    return [
        {"tool_call_id": item["tool_call_id"], "decision": verdict, "reason": reason}
        for item in request["items"]
    ]


def _show_request(request: Mapping[str, Any]) -> None:
    output.print_line(f"{request['approval_id']}  expires {request['expires_at']}")
    for item in request["items"]:
        output.print_line(f"    {call_line(item)}")
    if first := request.get("first"):
        by = clean(str(first["by"]))
        output.print_line(f"    approved by {by}; another user must approve the same calls")
