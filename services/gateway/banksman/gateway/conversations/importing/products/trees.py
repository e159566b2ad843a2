"""A conversation of another product: a tree of messages, of which a person saw one path at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

Kind = Literal["text", "thinking", "call", "result", "image", "other"]
Assets = Callable[[str], str | None]
"""Returns the data URL of an image by the reference in a message; None if the file does not contain it."""


@dataclass(frozen=True, slots=True)
class Piece:
    kind: Kind
    text: str = ""
    """The text; the name of an `other` piece, which is left out."""
    name: str = ""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    id: str = ""
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class Node:
    parent: str | None
    is_user: bool
    pieces: tuple[Piece, ...]
    at: datetime | None
    model: str = ""


@dataclass(frozen=True, slots=True)
class Tree:
    title: str
    product: str
    nodes: Mapping[str, Node]
    leaf: str | None
    """The last message of the path that was shown."""


def time_of(seconds: float | None) -> datetime | None:
    return None if not seconds or not 0 < seconds < 1e11 else datetime.fromtimestamp(seconds, UTC)
