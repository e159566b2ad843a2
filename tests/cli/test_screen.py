"""Output of `banksman up` on a terminal."""

import os
import pty
import select
import sys

import pytest

from banksman.cli.local.screen import Screen
from tests.support.timeouts import WAIT_TIMEOUT_S


def printed_on_a_terminal(monkeypatch: pytest.MonkeyPatch, **variables: str) -> str:
    """Return what the start of one process prints on a terminal."""
    for name in ("FORCE_COLOR", "NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    keyboard, device = pty.openpty()
    with os.fdopen(device, "w", encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        screen = Screen()
        screen.waiting(["nats"])
        screen.report("warning", "nats", text="\x1b[2J full")
        screen.waiting([])
        screen.report("stopped", "nats")
        printed = ""
        while not printed.endswith("stopped\r\n"):
            assert select.select([keyboard], [], [], WAIT_TIMEOUT_S)[0], (
                f"not printed completely: {printed!r}"
            )
            printed += os.read(keyboard, 65536).decode()
    os.close(keyboard)
    return printed


def test_status_line_is_replaced_by_each_event_and_shown_again_below_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clear = "\r\x1b[2K"

    assert printed_on_a_terminal(monkeypatch, NO_COLOR="1") == (
        f"{clear}waiting for nats"
        f"{clear}  ! nats          \\u001b[2J full\r\n{clear}waiting for nats"
        f"{clear}    nats          stopped\r\n"
    )


def test_terminal_shows_colours_and_a_dumb_one_plain_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = "  ! nats          \\u001b[2J full\r\n    nats          stopped\r\n"

    assert "  \x1b[33m!\x1b[0m nats " in printed_on_a_terminal(monkeypatch)
    assert printed_on_a_terminal(monkeypatch, TERM="dumb") == plain
