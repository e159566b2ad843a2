"""Output of `banksman up`: lines, and on a terminal a status line; or JSON."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from banksman.cli import output

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

Paint = Callable[[str, str], str]
"""Returns a text in a style; "" is no style."""


class Screen:
    """Prints the events of the supervisor."""

    def __init__(self, *, json: bool = False) -> None:
        """Choose the format.

        Args:
            json: Print each event as one JSON object on a line: `event`, `process` and its facts.
        """
        self._json = json
        self._console: Console | None = None
        self._paint: Paint = _plain
        self._status: Status | None = None
        if not json and (sys.stdout.isatty() or "FORCE_COLOR" in os.environ):
            self._use_terminal()

    def _use_terminal(self) -> None:
        # Only here: without a terminal, the supervisor does without the memory of this library.
        from rich.console import Console
        from rich.markup import escape

        def paint(text: str, style: str) -> str:
            return f"[{style}]{escape(text)}[/]" if style else escape(text)

        self._console = Console(highlight=False, soft_wrap=True)
        self._paint = paint

    def report(self, event: str, process: str | None = None, **facts: Any) -> None:
        """Print an event.

        Args:
            event: One of `ready`, `not_ready`, `ended`, `stopped`, `warning`, `note`, `up`.
            process: Name of the process that it is about.
            facts: Details; `_line` lists those of each event.
        """
        # The terminal may be closed already; the shutdown must continue.
        with contextlib.suppress(OSError):
            if self._json:
                output.print_json({"event": event, **({"process": process} if process else {}), **facts})
                return
            if event == "up":
                self.waiting(())
            line = _line(event, process or "", facts, self._paint)
            if self._console is None:
                output.print_line(line)
            else:
                self._console.print(line)
                sys.stdout.flush()

    def waiting(self, names: Sequence[str]) -> None:
        """Show the processes that are not ready in the status line; without names, remove it."""
        text = f"waiting for {', '.join(names)}"
        if self._console is None or not self._console.is_terminal:
            return
        if self._status is not None and not names:
            self._status.stop()
            self._status = None
        elif self._status is not None:
            self._status.update(text)
        elif names:
            self._status = self._console.status(text)
            self._status.start()


def _plain(text: str, _style: str) -> str:
    return text


def _line(event: str, process: str, facts: Mapping[str, Any], paint: Paint) -> str:
    name = f"{process:<13}"
    match event:
        case "ready":
            again = "again " if facts["again"] else ""
            return f"  {paint('✓', 'green')} {name} ready {again}after {facts['after_s']:.1f} s"
        case "not_ready":
            return f"  {paint('✗', 'red')} {name} not ready: {paint(facts['reason'], '')}"
        case "ended":
            how = f"{paint(facts['how'], '')}; restarts in {facts['again_in_s']:g} s"
            return f"  {paint('✗', 'red')} {name} {how}"
        case "stopped":
            return f"    {name} stopped"
        case "warning":
            return f"  {paint('!', 'yellow')} {name} {paint(facts['text'], '')}"
        case "up":
            notices = "".join(f"  {paint(notice, '')}\n" for notice in facts["notices"])
            return f"{notices}\n  Banksman is ready at {paint(facts['url'], 'bold')}  (Ctrl-C stops it)\n"
        case _:
            return f"  {paint(facts['text'], '')}"
