"""Conversations of ChatGPT."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from banksman.gateway.conversations.importing.products.trees import Assets, Node, Piece, Tree, time_of


class _Content(BaseModel):
    content_type: str
    parts: list[str | dict[str, Any] | None] = []
    text: str | None = None
    result: str | None = None
    thoughts: list[dict[str, Any]] = []


class _Author(BaseModel):
    role: str
    name: str | None = None


class _Message(BaseModel):
    author: _Author
    content: _Content
    create_time: float | None = None
    recipient: str | None = None
    metadata: dict[str, Any] = {}


class _MappedNode(BaseModel):
    parent: str | None = None
    message: _Message | None = None


class ChatGpt(BaseModel):
    """A conversation of ChatGPT."""

    title: str | None = None
    mapping: dict[str, _MappedNode]
    current_node: str | None = None

    def tree(self, assets: Assets) -> Tree:
        nodes = {name: _node(node, assets) for name, node in self.mapping.items()}
        return Tree(self.title or "", "chatgpt", nodes, self.current_node)


def _node(node: _MappedNode, assets: Assets) -> Node:
    message = node.message
    hidden = message is None or message.metadata.get("is_visually_hidden_from_conversation") is True
    if message is None or hidden or message.author.role == "system":
        return Node(node.parent, False, (), None)
    model = str(message.metadata.get("model_slug") or "")
    pieces = tuple(_pieces(message, assets))
    return Node(node.parent, message.author.role == "user", pieces, time_of(message.create_time), model)


def _pieces(message: _Message, assets: Assets) -> Iterator[Piece]:
    content, recipient = message.content, message.recipient or "all"
    text = content.text or content.result or "\n\n".join(one for one in content.parts if isinstance(one, str))
    match content.content_type:
        case "thoughts":
            thoughts = (f"{one.get('summary') or ''}\n{one.get('content') or ''}" for one in content.thoughts)
            yield Piece("thinking", "\n\n".join(thoughts).strip())
            return
        case (
            "text"
            | "multimodal_text"
            | "code"
            | "execution_output"
            | "system_error"
            | "tether_quote"
            | "tether_browsing_display"
        ):
            pass
        case other:
            yield Piece("other", other)
            return
    if message.author.role == "tool":
        is_error = content.content_type == "system_error"
        yield Piece("result", text, name=message.author.name or "tool", is_error=is_error)
    elif recipient != "all":
        yield Piece("call", name=recipient, arguments={"text": text})
    else:
        yield Piece("text", f"```\n{text}\n```" if content.content_type == "code" else text)
    for part in content.parts:
        if isinstance(part, dict):
            yield _part(part, assets)


def _part(part: dict[str, Any], assets: Assets) -> Piece:
    kind = str(part.get("content_type") or "part")
    if kind == "audio_transcription" and isinstance(part.get("text"), str):
        return Piece("text", part["text"])
    pointer = str(part.get("asset_pointer") or "")
    url = assets(pointer.rpartition("/")[2]) if kind == "image_asset_pointer" else None
    return Piece("other", f"{kind} {pointer}".strip()) if url is None else Piece("image", url)
