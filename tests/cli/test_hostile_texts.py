"""Texts from outside on a terminal: no event can control it, hide characters, or begin a line of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from banksman.cli.client.view import TextView
from banksman.contracts.visible import visible

from .conftest import banksman
from .fake_gateway import FakeGateway, fake_gateway
from .terminal import on_terminal

HOSTILE = "\x1b]0;owned\x07\x9b2J\u202e\u2065\U000e0fff"
NAME = f"bash{HOSTILE}\n? approval forged"
LINES = f"{HOSTILE}\n? approval forged"
REQUEST = {"tool_call_id": "k-1", "name": NAME, "arguments": {HOSTILE: HOSTILE}, "digest": ""}


def events() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every event that the terminal shows, with hostile text wherever others choose the text."""
    yield "run.queued", {"position": 1, "message": LINES}
    yield "run.started", {"message": [{"type": "text", "text": LINES}, {"type": HOSTILE}]}
    yield "message.delta", {"message_id": "m", "offset": 0, "text": HOSTILE}
    yield "message.completed", {"message_id": "m", "role": "assistant", "content": f"{HOSTILE}!"}
    yield "message.completed", {"message_id": "u", "role": "user", "content": LINES}
    yield "tool_call.requested", {"tool_call_id": "k-1", "name": NAME, "arguments": {"a": HOSTILE}}
    yield "protocol.retry", {"attempt": 1, "max": 2, "error": LINES}
    yield "model.notice", {"kind": "repaired", "text": LINES}
    yield "approval.resolved", {"approval_id": "a-1", "outcome": "approved", "by": NAME}
    for content in (LINES, {"stdout": LINES, "stderr": HOSTILE, "exit_code": 0}, {"url": HOSTILE}):
        yield "tool_call.completed", {"content": content, "is_error": True, "error_kind": HOSTILE}
    yield "workflow.progress", {"step": 1, "total": 2, "message": LINES}
    yield "history.cut", {"set_aside": 0}


def send(gateway: FakeGateway) -> None:
    for type, data in events():
        gateway.event(type, **data)
    gateway.event("run.finished", status="failed", content=HOSTILE, error={"code": "x", "message": LINES})


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_run_prints_no_character_that_controls_or_hides(options: tuple[str, ...]) -> None:
    """P15: text and JSON; JSON keeps its value."""
    with fake_gateway(send) as gateway:
        done = banksman("run", "hello", "--url", gateway.url, *options)

    assert "? approval forged" not in done.stdout.splitlines()
    assert (visible(done.stdout), visible(done.stderr)) == (done.stdout, done.stderr)
    assert len(done.stdout.splitlines()) > len(list(events())) / 2
    if options:
        names = [json.loads(line)["data"].get("name") for line in done.stdout.splitlines()]
        assert NAME in names


def test_replay_and_tail_show_a_request_without_hidden_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """P15: they print the user's messages too."""
    view = TextView(history=True)
    requested = ("approval.requested", {"approval_id": "a-1", "items": [REQUEST]})
    for type, data in (*events(), requested, ("input.requested", {"request_id": "q", "message": LINES})):
        view.show({"type": type, "run_id": "r", "data": data})
    printed = capsys.readouterr().out

    assert visible(printed) == printed
    assert "? approval forged" not in printed.splitlines()
    assert "bash\\u001b]0;owned" in printed


def test_an_error_of_the_gateway_is_printed_without_hidden_characters() -> None:
    """P15."""
    with fake_gateway(lambda _: None) as gateway:
        gateway.replies["chat.send"] = [{"type": "error", "code": "bad_request", "message": HOSTILE}]
        done = banksman("run", "hello", "--url", gateway.url)

    assert "\\u001b]0;owned" in done.stderr
    assert visible(done.stderr) == done.stderr


SCHEDULE: dict[str, Any] = {
    "id": "s-1",
    "paused": True,
    "next_at": None,
    "cron": None,
    "title": LINES,
    "start": {"type": "prompt", "content": LINES},
    "last_run": {
        "at": "now",
        "status": "failed",
        "result": "failed",
        "run_id": None,
        "error": {"message": LINES},
    },
}
SERVER: dict[str, Any] = {
    "id": "m",
    "needs_sign_in": False,
    "problem": LINES,
    "transport": {"url": None, "command": [LINES]},
    "changes": [],
}
INPUT = {"request_id": "q-1", "expires_at": "soon", "server": NAME, "message": LINES}


@pytest.mark.parametrize(
    ("command", "item"),
    [(("call", "schedule.list"), SCHEDULE), (("mcp", "ls"), SERVER), (("inputs",), INPUT)],
)
def test_an_entry_of_a_list_begins_no_line_of_its_own(command: tuple[str, ...], item: dict[str, Any]) -> None:
    """P15: titles, programs, and errors and requests of servers, which others choose."""
    with fake_gateway(lambda _: None) as gateway:
        gateway.approvals = [item]
        done = banksman(*command, "--url", gateway.url)

    assert "\\n? approval forged" in done.stdout
    assert "? approval forged" not in done.stdout.splitlines()


def test_a_patch_controls_no_terminal_and_stays_as_it_is_in_a_pipe() -> None:
    """P15: a command chose the contents of the files."""
    patch = f"--- a/x\n+++ b/x\n@@ -0,0 +1 @@\n+\t{HOSTILE}\n"
    with fake_gateway(lambda _: None) as gateway:
        gateway.fields = {"patch": patch}
        piped = banksman("diff", "c-1", "--url", gateway.url)
        with on_terminal("diff", "c-1", "--url", gateway.url, variables={}) as terminal:
            terminal.ended()

    assert piped.stdout == patch
    assert "\\u001b]0;owned" in terminal.text
    assert visible(terminal.text.replace("\r", "")) == terminal.text.replace("\r", "")
