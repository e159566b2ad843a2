"""Output of `banksman up`: lines, and on a terminal colours and a status line; or JSON."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from banksman.cli import output

# https://ecma-international.org/publications-and-standards/standards/ecma-48/
_STYLES = {"bold": 1, "red": 31, "green": 32, "yellow": 33}
_CLEAR_LINE = "\r\x1b[2K"


class Screen:
    def __init__(self, *, json: bool = False) -> None:
        """Choose the format.

        Args:
            json: Print each event as one JSON object on a line: `event`, `process` and its facts.
        """
        self._json = json
        capable = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self._has_status = capable and not json
        self._has_colours = "FORCE_COLOR" in os.environ or (capable and "NO_COLOR" not in os.environ)
        self._status = ""

    def report(self, event: str, process: str | None = None, **facts: Any) -> None:
        """Print an event.

        Args:
            event: One of `ready`, `not_ready`, `ended`, `stopped`, `warning`, `note`, `up`.
            process: Name of the process that the event concerns.
            facts: Details; `_line` lists those of each event.
        """
        # The terminal may be closed already; the shutdown must continue.
        with contextlib.suppress(OSError):
            if self._json:
                output.print_json({"event": event, **({"process": process} if process else {}), **facts})
            else:
                clear = _CLEAR_LINE if self._status else ""
                output.print_line(f"{clear}{self._line(event, process or '', facts)}")
                self._show(self._status)

    def waiting(self, names: Sequence[str]) -> None:
        """Show the processes that are not ready in the status line; without names, remove it."""
        if self._has_status:
            with contextlib.suppress(OSError):
                self._show(f"waiting for {', '.join(names)}" if names else "")

    def _show(self, status: str) -> None:
        if status or self._status:
            sys.stdout.write(f"{_CLEAR_LINE}{status}")
            sys.stdout.flush()
        self._status = status

    def _line(self, event: str, process: str, facts: Mapping[str, Any]) -> str:
        name = f"{process:<13}"
        match event:
            case "ready":
                again = "again " if facts["again"] else ""
                return f"  {self._paint('✓', 'green')} {name} ready {again}after {facts['after_s']:.1f} s"
            case "not_ready":
                return f"  {self._paint('✗', 'red')} {name} not ready: {output.clean(facts['reason'])}"
            case "ended":
                how = f"{output.clean(facts['how'])}; restarts in {facts['again_in_s']:g} s"
                return f"  {self._paint('✗', 'red')} {name} {how}"
            case "stopped":
                return f"    {name} stopped"
            case "warning":
                return f"  {self._paint('!', 'yellow')} {name} {output.clean(facts['text'])}"
            case "up":
                notices = "".join(f"  {notice}\n" for notice in facts["notices"])
                url = self._paint(facts["url"], "bold")
                return f"{notices}\n  Banksman is ready at {url}  (Ctrl-C stops it)\n"
            case _:
                return f"  {facts['text']}"

    def _paint(self, text: str, style: str) -> str:
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self._has_colours else text
