"""Command-line options and groups of commands, as all parts of the CLI have them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
JsonLog = Annotated[bool, typer.Option("--json", help="Print log lines and errors as JSON.")]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Directory of the system's state (default: .banksman).")
]


def group(help: str) -> typer.Typer:
    """Return a new group of commands, which is empty."""
    return typer.Typer(help=help, no_args_is_help=True, rich_markup_mode=None)
