"""The history of a conversation in provider-neutral terms. Each provider's adapter translates it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import Field

from banksman.contracts.tools import ToolCall, ToolResult
from banksman.contracts.wire import JsonObject, Stored, Text, Token

ToolProtocol = Literal["native", "json_text"]
"""
native     the vendor's own tool calls
json_text  one strict JSON object in the text of the reply
"""


class TextPart(Stored):
    """Text of a message."""

    type: Literal["text"] = "text"
    text: Text


class ImagePart(Stored):
    """An image: a data URL, an `http(s)` URL or a path in the workspace."""

    type: Literal["image"] = "image"
    url: str = Field(max_length=256 * 1024)
    media_type: str | None = None

    @property
    def is_link(self) -> bool:
        """Whether the vendor of the model fetches the image."""
        return self.url[:6].lower().startswith(("http:", "https:"))


class FilePart(Stored):
    """A file of the workspace that the message refers to."""

    type: Literal["file"] = "file"
    path: str = Field(max_length=4096)


_IMAGES = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".heic", ".heif", ".avif")


def is_image(path: str) -> bool:
    """Return whether a file is an image that a runner can reduce to what models take."""
    return path.lower().endswith(_IMAGES)


def is_document(path: str) -> bool:
    """Return whether a file may be sent as a document; all vendors that take documents take PDF."""
    return path.lower().endswith(".pdf")


Part = Annotated[TextPart | ImagePart | FilePart, Field(discriminator="type")]

Content = Text | tuple[Part, ...]
"""The content of a user's message: plain text, or parts."""


def text_of(content: Content) -> str:
    """Return the text of a message: parts joined by blank lines, images and files as placeholders."""
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


Author = Literal["person", "client", "agent", "workflow", "unknown"]
"""
person    a person typed the whole message
client    a program of the person composed it, such as one that sends a transcript
agent     another agent or model wrote it, over A2A or MCP
workflow  a workflow's template, with parameters and the values of earlier steps
unknown   imports, and messages that were stored before this field existed
"""
MAX_TYPED_CHARS = 32_000


class Provenance(Stored):
    """Who wrote a message. Only text that a person typed names hosts that may be read without approval."""

    author: Author = "unknown"
    typed: str = Field(default="", max_length=MAX_TYPED_CHARS, exclude_if=lambda text: not text)
    """What a person typed of a message that another author wrote."""

    @classmethod
    def partly(cls, author: Author, texts: Iterable[str]) -> Provenance:
        """Return the provenance of a message with texts that a person typed; too long texts do not count."""
        typed = "\n".join(texts)
        return cls(author=author, typed=typed if len(typed) <= MAX_TYPED_CHARS else "")


# Without validation, whose code would be built at each start.
UNKNOWN = Provenance.model_construct()
PERSON = Provenance.model_construct(author="person")
BY_AGENT = Provenance.model_construct(author="agent")


def typed_text(content: Content, provenance: Provenance) -> str:
    """Return the text of a message that a person typed, without names of files and addresses of images."""
    return "\n".join(typed_texts(content)) if provenance.author == "person" else provenance.typed


def typed_texts(content: Content) -> Iterable[str]:
    """Yield the texts of a message, without placeholders."""
    parts = (TextPart(text=content),) if isinstance(content, str) else content
    return (part.text for part in parts if isinstance(part, TextPart))


MAX_TOKENS = 100_000_000
"""More tokens in one request than any model reads or writes: a server that reports them is not believed."""


class Usage(Stored):
    """Tokens and cost of model requests. The usage of a run is the sum over its requests."""

    input_tokens: int = 0
    """All input tokens, including cached ones."""
    output_tokens: int = 0
    cached_tokens: int = 0
    """The part of `input_tokens` that the vendor read from its cache."""
    cache_written_tokens: int = Field(default=0, exclude_if=lambda count: not count)
    """The part of `input_tokens` that the vendor wrote to its cache and prices separately."""
    cache_written_1h_tokens: int = Field(default=0, exclude_if=lambda count: not count)
    """The part of `cache_written_tokens` that the cache stores for an hour, at a higher price."""
    cost_usd: float | None = None
    """Cost in USD; None if the price of the model is unknown, which does not mean free."""

    def __add__(self, other: Usage) -> Usage:
        """Return the sum. If only one cost is known, it is the cost of the sum."""
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
    """A user's message, or a correction that the protocol adds."""

    role: Literal["user"] = "user"
    message_id: Token
    content: Content
    provenance: Provenance = Field(default=UNKNOWN, exclude_if=lambda one: one == UNKNOWN)


class AssistantMessage(Stored):
    """One reply of the model."""

    role: Literal["assistant"] = "assistant"
    message_id: Token
    content: Text | None
    """None if the reply contains only calls."""
    calls: tuple[ToolCall, ...] = ()
    protocol: ToolProtocol = "native"
    """The format of the calls. Later model requests contain them in the same format."""
    provider: str = ""
    provider_state: JsonObject | None = None
    """Data that the provider expects back with the message, such as signed reasoning."""


class ToolMessage(Stored):
    """The result of one call of the preceding assistant message."""

    role: Literal["tool"] = "tool"
    name: str
    result: ToolResult
    executed: JsonObject | None = Field(default=None, exclude_if=lambda arguments: arguments is None)
    """The arguments of the execution if an approver replaced those of the model."""


Message = Annotated[UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]
