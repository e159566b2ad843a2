"""Command-line options that several parts of the CLI share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
JsonLog = Annotated[bool, typer.Option("--json", help="Print log lines and errors as JSON.")]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Directory of the system's state (default: .banksman).")
]
