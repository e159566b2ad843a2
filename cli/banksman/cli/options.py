"""What all parts of the CLI use to declare commands: options, groups, and modules that are imported late."""

from __future__ import annotations

import sys
from importlib.util import LazyLoader, find_spec, module_from_spec
from pathlib import Path
from types import ModuleType
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


def lazy(name: str) -> ModuleType:
    """Return a module that runs when one of its names is first used: `--help` needs no implementation."""
    if name in sys.modules:
        return sys.modules[name]
    spec = find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(name)
    spec.loader = LazyLoader(spec.loader)
    module = sys.modules[name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
