from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias


@dataclass(frozen=True, slots=True)
class Run:
    """Run a shell command."""

    command: str


@dataclass(frozen=True, slots=True)
class ListFiles:
    """List a folder of the workspace; None is its root."""

    folder: str | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """Read a file, to quote it or to sum it up."""

    path: str
    summarise: bool = False


@dataclass(frozen=True, slots=True)
class ReadBack:
    """Read the file that was written or read last."""


@dataclass(frozen=True, slots=True)
class Write:
    """Write a text to a file."""

    path: str
    content: str


@dataclass(frozen=True, slots=True)
class WriteReport:
    """Write a report about what the steps before it found."""

    path: str
    about: str | None = None
    """What the user wants to read about; None: the steps before."""


@dataclass(frozen=True, slots=True)
class SaveOutput:
    """Write the output of the step before to a file as it stands."""

    path: str


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetch a web address."""

    url: str
    format: Literal["raw", "markdown"] | None = None


@dataclass(frozen=True, slots=True)
class Weather:
    """Ask for a place's weather."""

    place: str


@dataclass(frozen=True, slots=True)
class UseTool:
    """Call a tool by its name with the arguments that the user states."""

    name: str
    arguments: Mapping[str, Any]


Step: TypeAlias = (
    Run | ListFiles | Read | ReadBack | Write | WriteReport | SaveOutput | Fetch | Weather | UseTool
)

ReadingStep = (ListFiles, Read, Fetch, Weather)
"""Steps that change nothing, so that several may run at once."""
