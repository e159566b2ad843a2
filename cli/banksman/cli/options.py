"""Command-line options that several parts of the CLI share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON, one object per line.")]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Directory of the system's state (default: .banksman).")
]
