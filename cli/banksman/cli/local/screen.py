"""What `banksman up` shows: lines for people, with what is waited for on a terminal, or JSON."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from typing import Any, Protocol

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from banksman.cli import output


class Screen(Protocol):
    """Where `up` tells what happens."""

    def waiting(self, names: Iterable[str]) -> None:
        """These are not ready yet; none any more when there are no names."""
        ...

    def ready(self, name: str, after_s: float, *, again: bool = False) -> None:
        """A process is ready, so many seconds after its start."""
        ...

    def not_ready(self, name: str, reason: str) -> None:
        """A process did not get ready in time."""
        ...

    def ended(self, name: str, how: str, again_in_s: float) -> None:
        """A process ended though nobody told it to, and starts again."""
        ...

    def stopped(self, name: str) -> None:
        """A process ended as it was told to."""
        ...

    def warning(self, name: str, text: str) -> None:
        """A process logged a warning or an error."""
        ...

    def up(self, facts: dict[str, Any], notices: Iterable[str]) -> None:
        """Start-up is over."""
        ...

    def note(self, text: str) -> None:
        """Something else that a person should know."""
        ...


class PlainScreen:
    """Lines; on a terminal the last one says what is waited for."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._status: Status | None = None

    def waiting(self, names: Iterable[str]) -> None:
        """Show what is waited for, where the line can be taken back."""
        text = ", ".join(names)
        if not self._console.is_terminal:
            return
        if not text:
            self._clear()
        elif self._status is None:
            self._status = self._console.status(f"waiting for {text}")
            self._status.start()
        else:
            self._status.update(f"waiting for {text}")

    def ready(self, name: str, after_s: float, *, again: bool = False) -> None:
        """A green line."""
        self._line(f"  [green]✓[/] {name:<13} ready {'again ' if again else ''}after {after_s:.1f} s")

    def not_ready(self, name: str, reason: str) -> None:
        """A red line."""
        self._line(f"  [red]✗[/] {name:<13} not ready: {escape(reason)}")

    def ended(self, name: str, how: str, again_in_s: float) -> None:
        """A red line."""
        self._line(f"  [red]✗[/] {name:<13} {escape(how)}; starts again in {again_in_s:g} s")

    def stopped(self, name: str) -> None:
        """A line."""
        self._line(f"    {name:<13} ended")

    def warning(self, name: str, text: str) -> None:
        """A yellow line."""
        self._line(f"  [yellow]![/] {name:<13} {escape(text)}")

    def up(self, facts: dict[str, Any], notices: Iterable[str]) -> None:
        """The address, last, where it is seen."""
        self._clear()
        for notice in notices:
            self._line(f"  {escape(notice)}")
        self._line(f"\n  Banksman is ready at [bold]{facts['url']}[/]  (Ctrl-C ends it)\n")

    def note(self, text: str) -> None:
        """A line."""
        self._line(f"  {escape(text)}")

    def _line(self, text: str) -> None:
        # The terminal may be gone by now; what runs must still end in order.
        with contextlib.suppress(OSError):
            self._console.print(text)
            sys.stdout.flush()

    def _clear(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


class JsonScreen:
    """One JSON object a line."""

    def waiting(self, names: Iterable[str]) -> None:
        """Nothing: what is ready will be told."""

    def ready(self, name: str, after_s: float, *, again: bool = False) -> None:
        """`{"event": "ready", …}`."""
        self._emit("ready", process=name, after_s=round(after_s, 3), again=again)

    def not_ready(self, name: str, reason: str) -> None:
        """`{"event": "not_ready", …}`."""
        self._emit("not_ready", process=name, reason=reason)

    def ended(self, name: str, how: str, again_in_s: float) -> None:
        """`{"event": "ended", …}`."""
        self._emit("ended", process=name, how=how, again_in_s=again_in_s)

    def stopped(self, name: str) -> None:
        """`{"event": "stopped", …}`."""
        self._emit("stopped", process=name)

    def warning(self, name: str, text: str) -> None:
        """`{"event": "warning", …}`."""
        self._emit("warning", process=name, text=text)

    def up(self, facts: dict[str, Any], notices: Iterable[str]) -> None:
        """`{"event": "up", …}`."""
        self._emit("up", **facts, notices=list(notices))

    def note(self, text: str) -> None:
        """`{"event": "note", …}`."""
        self._emit("note", text=text)

    def _emit(self, event: str, **facts: Any) -> None:
        with contextlib.suppress(OSError):
            output.emit({"event": event, **facts})
