"""Chats of Open WebUI."""

from __future__ import annotations

import re

from pydantic import BaseModel, Field

from banksman.gateway.conversations.importing.products.trees import Assets, Node, Piece, Tree, time_of

_THINKING = re.compile(r'<details type="reasoning"[^>]*>\s*(?:<summary>[^<]*</summary>)?([^<]*)</details>')


class _File(BaseModel):
    type: str = "file"
    url: str | None = None
    name: str | None = None


class _Message(BaseModel):
    id: str = ""
    parent: str | None = Field(default=None, alias="parentId")
    role: str
    content: str = ""
    model: str | None = None
    timestamp: float | None = None
    files: list[_File] | None = None


class _History(BaseModel):
    messages: dict[str, _Message]
    current: str | None = Field(default=None, alias="currentId")


class _Chat(BaseModel):
    title: str | None = None
    history: _History


class OpenWebUi(BaseModel):
    """A chat of Open WebUI."""

    chat: _Chat
    title: str | None = None

    def tree(self, _: Assets) -> Tree:
        history = self.chat.history
        nodes = {name: _node(message) for name, message in history.messages.items()}
        return Tree(self.title or self.chat.title or "", "open-webui", nodes, history.current)


def _node(message: _Message) -> Node:
    thinking = (Piece("thinking", text.strip()) for text in _THINKING.findall(message.content))
    text = Piece("text", _THINKING.sub("", message.content).strip())
    files = (
        Piece("image", one.url)
        if one.type == "image" and (one.url or "").startswith("data:") and one.url
        else Piece("other", one.name or one.url or one.type)
        for one in message.files or ()
    )
    pieces = (*thinking, text, *files)
    is_user = message.role == "user"
    return Node(message.parent, is_user, pieces, time_of(message.timestamp), message.model or "")
