"""What every command has in common: exit codes, `--json`, and how it speaks."""

from __future__ import annotations

import json
import sys
from enum import IntEnum
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")]


class Exit(IntEnum):
    """How a command ends."""

    OK = 0
    WARNING = 1
    """It did what was asked, and something needs a look; or it ended otherwise than well."""
    CRITICAL = 2
    """It could not do what was asked: a wrong argument or setting, a service that does not answer."""


def say(text: str = "") -> None:
    """Print a line for a person."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def complain(text: str) -> None:
    """Print a line on standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def emit(value: Any) -> None:
    """Print a value as one line of JSON."""
    say(json.dumps(value, ensure_ascii=False, default=str))


def leave(code: Exit) -> None:
    """End the command with this code.

    Raises:
        typer.Exit: unless the code is OK.
    """
    if code is not Exit.OK:
        raise typer.Exit(int(code))
