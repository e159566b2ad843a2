from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias

Dialect = Literal["openai", "anthropic"]
"""Whose wire format a request speaks.

- `openai`: chat completions
- `anthropic`: messages
"""


@dataclass(frozen=True, slots=True)
class UserText:
    """Something a person (or the program that speaks for one) said."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call, in the history or about to be sent."""

    id: str
    name: str
    arguments: str
    """JSON text, as the model wrote it; not necessarily valid."""


@dataclass(frozen=True, slots=True)
class AssistantTurn:
    """One earlier reply of the model."""

    text: str
    calls: tuple[Call, ...] = ()
    thinking: tuple[str, ...] = ()
    """The signed thinking that came back with it."""


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """The result of one tool call."""

    call_id: str
    text: str
    is_error: bool = False


Item: TypeAlias = UserText | AssistantTurn | ToolOutput


@dataclass(frozen=True)
class ChatRequest:
    """A checked request in neutral words: what both vendors' formats have in common."""

    dialect: Dialect
    model: str
    items: tuple[Item, ...]
    """The history, oldest first; system text is apart."""
    system: str = ""
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """JSON Schema of each offered tool's arguments by the tool's name."""
    parallel_calls: bool = True
    stream: bool = False
    include_usage: bool = True
    """Whether a stream reports usage; OpenAI streams do so only when asked."""
    input_chars: int = 0
    """Characters of system text, history and tool definitions."""

    @cached_property
    def position(self) -> int:
        """How many replies of the model the history holds: 0 for the first request of a conversation."""
        return sum(isinstance(item, AssistantTurn) for item in self.items)

    @cached_property
    def conversation(self) -> str:
        """What tells conversations apart that play one script: the first text of the user."""
        return next((item.text for item in self.items if isinstance(item, UserText)), "")

    @property
    def input_tokens(self) -> int:
        """Estimated tokens of the request."""
        return estimated_tokens(self.input_chars)


def estimated_tokens(chars: int) -> int:
    """Tokens of a text, at four characters a token, rounded up."""
    return (chars + 3) // 4
