"""The history of a conversation in our own words; each provider's adapter translates it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from banksman.contracts.tools import ToolCall, ToolResult
from banksman.contracts.wire import JsonObject, Stored, Text, Token

ToolProtocol = Literal["native", "json_text"]
"""
native     the vendor's own tool calls
json_text  one strict JSON object in the reply's text
"""


class TextPart(Stored):
    """A piece of text."""

    type: Literal["text"] = "text"
    text: Text


class ImagePart(Stored):
    """An image, by data URL or by its path in the workspace."""

    type: Literal["image"] = "image"
    url: str = Field(max_length=256 * 1024)
    media_type: str | None = None


class FilePart(Stored):
    """A file of the workspace that the message is about."""

    type: Literal["file"] = "file"
    path: str = Field(max_length=4096)


Part = Annotated[TextPart | ImagePart | FilePart, Field(discriminator="type")]

Content = Text | tuple[Part, ...]
"""What a user writes: plain text, or parts."""


def text_of(content: Content) -> str:
    """The text of a message, parts joined by blank lines; images and files by name."""
    if isinstance(content, str):
        return content
    return "\n\n".join(_part_text(part) for part in content)


def _part_text(part: TextPart | ImagePart | FilePart) -> str:
    match part:
        case TextPart():
            return part.text
        case ImagePart():
            return "[image]"
        case FilePart():
            return f"[file {part.path}]"


class Usage(Stored):
    """What model requests consumed; totals of a run are sums of these."""

    input_tokens: int = 0
    """All input tokens, cached ones included."""
    output_tokens: int = 0
    cached_tokens: int = 0
    """The part of `input_tokens` that the vendor read from its cache."""
    cache_written_tokens: int = Field(default=0, exclude_if=lambda count: not count)
    """The part of `input_tokens` that the vendor wrote to its cache, where that costs more."""
    cache_written_1h_tokens: int = Field(default=0, exclude_if=lambda count: not count)
    """The part of `cache_written_tokens` that the cache keeps for an hour, which costs more still."""
    cost_usd: float | None = None
    """None when the price of the model is unknown, which is not the same as free."""

    def __add__(self, other: Usage) -> Usage:
        """Sum; a cost of which one part is unknown counts the known part."""
        costs = [cost for cost in (self.cost_usd, other.cost_usd) if cost is not None]
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            cache_written_tokens=self.cache_written_tokens + other.cache_written_tokens,
            cache_written_1h_tokens=self.cache_written_1h_tokens + other.cache_written_1h_tokens,
            cost_usd=sum(costs) if costs else None,
        )


class UserMessage(Stored):
    """What a person, or a correction of ours, says to the model."""

    role: Literal["user"] = "user"
    message_id: Token
    content: Content


class AssistantMessage(Stored):
    """One reply of the model."""

    role: Literal["assistant"] = "assistant"
    message_id: Token
    content: Text | None
    """None when the reply held calls only."""
    calls: tuple[ToolCall, ...] = ()
    protocol: ToolProtocol = "native"
    """How the calls were written, which is how they are shown to the model again."""
    provider: str = ""
    provider_state: JsonObject | None = None
    """What the vendor wants back with this message, such as signed reasoning; only for that provider."""


class ToolMessage(Stored):
    """The result of one call of the assistant message before it."""

    role: Literal["tool"] = "tool"
    name: str
    result: ToolResult


Message = Annotated[UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]
