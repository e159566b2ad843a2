"""Commands for a conversation: chat, run, demo, tail, replay, `workflows run`, export and import."""

from __future__ import annotations

import base64
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from banksman.bus.errors import RemoteError
from banksman.cli import output
from banksman.cli.client.gateway import Frame, FrameSession, GatewayClient
from banksman.cli.client.options import read_parameters
from banksman.cli.client.talk import Verdict, always, ask_user, chat_loop, check_message, follow
from banksman.cli.client.view import JsonView, TextView, View
from banksman.cli.output import Exit
from banksman.contracts.errors import BadInput, Unavailable
from banksman.contracts.frames import Detail
from banksman.contracts.ids import conversation_of
from banksman.runtime.backoff import Backoff

_DEMO = ("write Hello from Banksman to notes.txt", "run `cat notes.txt && ls -la`", "draw a diagram")
"""Requests that both the demo model and language models understand."""
Source = Mapping[str, str | int | None]
"""The fields of a `RepositorySource`."""
_FIRST_RETRY_S = 0.5
_LAST_RETRY_S = 10.0


def chat(
    gateway: GatewayClient,
    *,
    conversation_id: str | None,
    model: str | None,
    assistant: str | None,
    source: Source | None = None,
    as_json: bool = False,
) -> Exit:
    view = _view(as_json)
    with gateway.session() as session:
        conversation_id = _opened(
            session, conversation_id, view, model=model, assistant=assistant, source=source
        )
        output.print_error(f"conversation {conversation_id}; Ctrl-C cancels a run, Ctrl-D ends the chat")
        return chat_loop(session, conversation_id, view, ask_user)


def run(
    gateway: GatewayClient,
    text: str,
    *,
    conversation_id: str | None = None,
    model: str | None = None,
    assistant: str | None = None,
    verdict: Verdict | None = None,
    source: Source | None = None,
    as_json: bool = False,
) -> Exit:
    """Send one message and follow its run; raise `BadInput` if the message is empty or not valid text."""
    message, view = check_message(text if text != "-" else sys.stdin.read()), _view(as_json)
    with gateway.session() as session:
        opened = _opened(session, conversation_id, view, model=model, assistant=assistant, source=source)
        if conversation_id is None and not as_json:
            output.print_error(f"conversation {opened}")
        # Text from a pipe is the output of another program.
        piped = {"provenance": {"author": "client"}} if text == "-" and not sys.stdin.isatty() else {}
        sent = session.request("chat.send", conversation_id=opened, content=message, **piped)
        return follow(session, str(sent["run_id"]), view, always(verdict) if verdict else ask_user)


def compact(gateway: GatewayClient, conversation_id: str, *, as_json: bool = False) -> Exit:
    view = _view(as_json)
    with gateway.session() as session:
        opened = _opened(session, conversation_id, view, model=None, assistant=None)
        started = gateway.call("conversation.compact", opened)
        return follow(session, str(started["run_id"]), view, ask_user)


def demo(gateway: GatewayClient, *, as_json: bool = False) -> Exit:
    view = _view(as_json, history=True)
    with gateway.session() as session:
        conversation_id = session.create(title="A first look")
        worst = Exit.OK
        for text in _DEMO:
            sent = session.request("chat.send", conversation_id=conversation_id, content=text)
            worst = max(worst, follow(session, str(sent["run_id"]), view, always("approve")))
    if not as_json:
        output.print_text(f"\nThe same in the browser: {gateway.url}")
    return worst


def tail(
    gateway: GatewayClient, conversation_id: str, *, after_seq: int, detail: Detail, as_json: bool = False
) -> Exit:
    follower = _Follower(conversation_id, after_seq, detail, _view(as_json, history=True))
    backoff = Backoff(_FIRST_RETRY_S, _LAST_RETRY_S, spread=0)
    try:
        while True:
            try:
                with gateway.session() as session:
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
    gateway: GatewayClient, conversation_id: str, *, after_seq: int, detail: Detail, as_json: bool = False
) -> Exit:
    follower = _Follower(conversation_id, after_seq, detail, _view(as_json, history=True))
    with gateway.session() as session:
        follower.subscribe(session)
        follower.show_all(session, until=lambda frame: frame["type"] == "replay.done")
    return Exit.OK


def run_workflow(gateway: GatewayClient, name: str, given: list[str], *, as_json: bool = False) -> Exit:
    parameters = read_parameters(gateway, name, given)
    with gateway.session() as session:
        started = session.request("workflow.start", workflow=name, parameters=parameters)
        run_id = str(started["run_id"])
        session.subscribe(conversation_of(run_id), after_seq=0)
        return follow(session, run_id, _view(as_json), ask_user)


class _Follower:
    def __init__(self, conversation_id: str, after_seq: int, detail: Detail, view: View) -> None:
        self.subscribed = False
        self._conversation_id = conversation_id
        self._seq = after_seq
        self._log_epoch: str | None = None
        self._detail: Detail = detail
        self._view = view

    def subscribe(self, session: FrameSession) -> None:
        """Subscribe to the events after the last one shown; to all if the log was restored meanwhile.

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

    def show_all(self, session: FrameSession, until: Callable[[Frame], bool] | None = None) -> None:
        for frame in session.frames():
            if frame.get("conversation_id") != self._conversation_id:
                continue
            if until is not None and until(frame):
                return
            if self._is_new(session, frame):
                self._view.show(frame)

    def _request(self, session: FrameSession) -> Frame:
        return session.subscribe(
            self._conversation_id, after_seq=self._seq, log_epoch=self._log_epoch, detail=self._detail
        )

    def _restart(self, resync: Frame) -> None:
        output.print_error(f"{resync['reason']}; showing the conversation from its start")
        self._seq, self._log_epoch = int(resync["oldest_seq"]) - 1, None

    def _is_new(self, session: FrameSession, frame: Frame) -> bool:
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


def _opened(session: FrameSession, conversation_id: str | None, view: View, **settings: Any) -> str:
    """Return the id of the given conversation, to which the session subscribes, or of a new one."""
    if conversation_id is None:
        return session.create(**settings)
    view.note_open(session.subscribe(conversation_id))
    return conversation_id


def _view(as_json: bool, *, history: bool = False) -> View:
    return JsonView() if as_json else TextView(history=history)


MAX_FILES_BYTES = 16 * 1024 * 1024
"""Maximum bytes of all attached files in an export."""
DATA = "data:application/octet-stream;base64,"


def exported(api: GatewayClient, conversation_id: str) -> dict[str, Any]:
    """Return a conversation with all its events, and the files of the workspace that its messages name."""
    record = api.call("conversation.read", conversation_id)
    events, after = list[Mapping[str, Any]](), 0
    while after is not None:
        query = {"after_seq": after, "whole": True}
        page = api.call("conversation.events", conversation_id, body=query)
        events, after = [*events, *page["items"]], page["next"]
    files = list(_files(api, conversation_id, events))
    return {"conversation": record, "events": events, "files": files}


def _files(
    api: GatewayClient, conversation_id: str, events: Iterable[Mapping[str, Any]]
) -> Iterator[Mapping[str, str]]:
    size = 0
    for path in dict.fromkeys(path for event in events for path in _named(event)):
        try:
            data = api.read_file(conversation_id, path)
        except RemoteError:
            continue  # It was deleted since.
        size += len(data)
        if size <= MAX_FILES_BYTES:
            yield {"path": path, "data": DATA + base64.b64encode(data).decode()}


def _named(event: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths of attached files; images and documents may also be addresses or data."""
    content: str | list[dict[str, str]] = event["data"]["message"] if event["type"] == "run.started" else ""
    for part in content if isinstance(content, list) else ():
        path = part.get("path") or part.get("url")
        if path and not path.startswith(("data:", "http:", "https:")):
            yield path


def imported(api: GatewayClient, data: bytes) -> list[Mapping[str, Any]]:
    """Import conversations, with the files of an export; return what became of each conversation."""
    items, start = list[dict[str, Any]](), 0
    while start is not None:
        page = api.send_file("conversation.import", data, start=start)
        items, start = [*items, *page["items"]], page["next"]
    if len(items) == 1 and items[0]["product"] == "banksman" and items[0]["conversation_id"]:
        items[0]["left_out"] |= _stored(api, items[0]["conversation_id"], json.loads(data).get("files", ()))
    return list(items)


def _stored(api: GatewayClient, conversation_id: str, files: Iterable[Mapping[str, str]]) -> dict[str, int]:
    """Store files in a workspace; return those that were refused."""
    refused: dict[str, int] = {}
    for file in files:
        content = base64.b64decode(file["data"].partition(",")[2])
        try:
            api.write_file(conversation_id, file["path"], content)
        except RemoteError:
            refused[file["path"]] = 1
    return refused
