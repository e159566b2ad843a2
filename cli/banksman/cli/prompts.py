"""Prompts on the terminal."""

from __future__ import annotations

import sys
import termios


def prompt(text: str) -> str:
    """Show a prompt and return the line that the user then types, as `typed` does, in lower case."""
    return typed(text).lower()


def typed(text: str) -> str:
    """Show a prompt and return the line that the user then types, without outer white space.

    Without a terminal the prompt goes to standard error: standard output may be read as JSON.

    Returns:
        The line; empty at the end of input.
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
