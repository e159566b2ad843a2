"""Output of `banksman up`: lines, and on a terminal a status line; or JSON."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from banksman.cli import output


class Screen:
    """Prints the events of the supervisor."""

    def __init__(self, *, json: bool = False) -> None:
        """Choose the format.

        Args:
            json: Print each event as one JSON object on a line: `event`, `process` and its facts.
        """
        self._json = json
        self._console = Console(highlight=False, soft_wrap=True)
        self._status: Status | None = None

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
            self._console.print(_line(event, process or "", facts))
            sys.stdout.flush()

    def waiting(self, names: Sequence[str]) -> None:
        """Show the processes that are not ready in the status line; without names, remove it."""
        text = f"waiting for {', '.join(names)}"
        if self._json or not self._console.is_terminal:
            return
        if self._status is not None and not names:
            self._status.stop()
            self._status = None
        elif self._status is not None:
            self._status.update(text)
        elif names:
            self._status = self._console.status(text)
            self._status.start()


def _line(event: str, process: str, facts: Mapping[str, Any]) -> str:
    name = f"{process:<13}"
    match event:
        case "ready":
            again = "again " if facts["again"] else ""
            return f"  [green]✓[/] {name} ready {again}after {facts['after_s']:.1f} s"
        case "not_ready":
            return f"  [red]✗[/] {name} not ready: {escape(facts['reason'])}"
        case "ended":
            return f"  [red]✗[/] {name} {escape(facts['how'])}; restarts in {facts['again_in_s']:g} s"
        case "stopped":
            return f"    {name} stopped"
        case "warning":
            return f"  [yellow]![/] {name} {escape(facts['text'])}"
        case "up":
            notices = "".join(f"  {escape(notice)}\n" for notice in facts["notices"])
            return f"{notices}\n  Banksman is ready at [bold]{facts['url']}[/]  (Ctrl-C stops it)\n"
        case _:
            return f"  {escape(facts['text'])}"
