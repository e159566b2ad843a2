"""What the program that reads files of conversations is asked, and what it replies."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from banksman.contracts.wire import Stored


class ReadRequest(Stored):
    tenant: str
    source: str
    """The id from which those of the conversations are derived."""
    start: int


class ReadConversation(Stored):
    conversation_id: str
    title: str
    product: str
    runs: int = 0
    error: str | None = None
    left_out: Mapping[str, int] = Field(default_factory=dict)
    parts: tuple[int, ...] = ()
    """Bytes of each part."""


class ReadConversations(Stored):
    items: tuple[ReadConversation, ...] = ()
    next: int | None = None
    error: str | None = None
