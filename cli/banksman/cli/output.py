"""Exit codes, output and prompts that all commands share."""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from enum import IntEnum
from io import TextIOWrapper
from typing import Any

from banksman.contracts.errors import BanksmanError
from banksman.contracts.visible import one_line, visible, visible_json

PROGRAM = "banksman"


class Exit(IntEnum):
    OK = 0
    WARNING = 1
    """The command ran, and its result needs attention."""
    CRITICAL = 2
    """The command failed: a wrong argument or setting, or a service that does not respond."""


def prepare_streams() -> None:
    """Make the standard streams usable: each may be closed, or have an encoding that lacks characters."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            # Opened in this order, the file gets the descriptor of the closed stream before another file can.
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # until the process ends
        elif isinstance(stream, TextIOWrapper):
            # The launcher forks services and replaces their descriptors: the streams may be pipes that Python
            # takes for files, which have a position. Services write logs only, as escaped JSON or text.
            with suppress(OSError):
                stream.reconfigure(errors="surrogateescape" if name == "stdin" else "backslashreplace")


def discard_unwritten() -> None:
    """Discard output that a stream does not take, such as a full disk or a pipe without a reader.

    Python would try to write it again at the end of the process, print a traceback and change the exit code.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def print_line(text: str = "") -> None:
    """Print one line of text, which may be from outside: nothing in it can hide, or begin another line."""
    print_styled(one_line(text))


def print_text(text: str) -> None:
    """Print text of several lines, which may be from outside: nothing hides, or controls the terminal."""
    print_styled(visible(text))


def print_styled(text: str) -> None:
    """Print text with escapes for the terminal; it contains no text from outside that is not marked."""
    sys.stdout.write(f"{text}\n")
    # Without a flush, a reader of a pipe sees nothing until the command ends.
    sys.stdout.flush()


def print_error(text: str) -> None:
    sys.stderr.write(f"{visible(text)}\n")
    sys.stderr.flush()


def print_json(value: Any) -> None:
    print_styled(visible_json(value))


def print_result(facts: Any, text: str | list[str], *, problems: Iterable[str] = (), as_json: bool) -> None:
    """Print a result. As text, a list has texts of several lines; problems go to standard error."""
    if as_json:
        print_json(facts)
        return
    if isinstance(text, str):
        print_line(text)
    else:
        print_text("\n".join(text))
    for problem in problems:
        print_error(problem)


def print_items(
    items: Sequence[Any], line: Callable[[Any], str | list[str]], *, none: str, as_json: bool
) -> None:
    """Print each item, with `line` as text; print `none` if there are no items."""
    for item in items:
        print_result(item, line(item), as_json=as_json)
    if not items and not as_json:
        print_line(none)


def print_failure(message: str, code: str, *, as_json: bool) -> Exit:
    if as_json:
        print_json({"error": {"code": code, "message": message}})
    else:
        print_error(f"{PROGRAM}: {message}")
    return Exit.CRITICAL


def error_code(error: BanksmanError | OSError) -> str:
    return error.code if isinstance(error, BanksmanError) else "os_error"


def error_text(error: Exception) -> str:
    """Return the message of an error, or its type if it has none."""
    return str(error) or type(error).__name__


def exit_with(code: Exit) -> None:
    if code is not Exit.OK:
        import typer

        raise typer.Exit(int(code))


def prompt(text: str) -> str:
    """Return the line that the user types, in lower case."""
    return typed(text).lower()


def typed(text: str) -> str:
    """Show a prompt and return the line that the user then types; empty at the end of input.

    Without a terminal the prompt goes to standard error: standard output may be read as JSON.
    """
    if not sys.stdout.isatty():
        sys.stderr.write(text)
        sys.stderr.flush()
        text = ""
    if sys.stdin.isatty():
        # Input from before the prompt was shown cannot be a response to it.
        termios.tcflush(sys.stdin, termios.TCIFLUSH)
    try:
        return input(text).strip()
    except EOFError:
        return ""
