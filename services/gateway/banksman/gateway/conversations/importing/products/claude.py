"""Conversations of Claude."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from pydantic import BaseModel

from banksman.gateway.conversations.importing.products.trees import Assets, Node, Piece, Tree


class _Block(BaseModel):
    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    tool_use_id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None


class _Attachment(BaseModel):
    file_name: str = ""
    extracted_content: str | None = None


class _Message(BaseModel):
    uuid: str
    sender: str
    parent_message_uuid: str | None = None
    text: str = ""
    content: list[_Block] = []
    created_at: datetime | None = None
    attachments: list[_Attachment] = []
    files: list[_Attachment] = []


class Claude(BaseModel):
    """A conversation of Claude."""

    name: str | None = None
    chat_messages: list[_Message]
    current_leaf_message_uuid: str | None = None

    def tree(self, _: Assets) -> Tree:
        nodes = dict[str, Node]()
        last = None
        for one in self.chat_messages:
            pieces = tuple(_pieces(one))
            parent = one.parent_message_uuid or last
            nodes[one.uuid] = Node(parent, one.sender == "human", pieces, one.created_at)
            last = one.uuid
        return Tree(self.name or "", "claude", nodes, self.current_leaf_message_uuid or last)


def _pieces(message: _Message) -> Iterator[Piece]:
    for block in message.content or [_Block(type="text", text=message.text)]:
        yield _piece(block)
    for one in (*message.attachments, *message.files):
        if one.extracted_content:
            yield Piece("text", f"{one.file_name}\n\n{one.extracted_content}")
        else:
            yield Piece("other", one.file_name or "file")


def _piece(block: _Block) -> Piece:
    match block.type:
        case "text":
            return Piece("text", block.text or "")
        case "thinking":
            return Piece("thinking", block.thinking or "")
        case "tool_use":
            return Piece("call", name=block.name or "tool", arguments=block.input or {}, id=block.id or "")
        case "tool_result":
            content = block.content
            parts = content if isinstance(content, list) else [{"text": content or ""}]
            text = "\n".join(str(part.get("text") or f"[{part.get('type')}]") for part in parts)
            name, call = block.name or "tool", block.tool_use_id or ""
            return Piece("result", text, name=name, id=call, is_error=bool(block.is_error))
        case other:
            return Piece("other", other)
