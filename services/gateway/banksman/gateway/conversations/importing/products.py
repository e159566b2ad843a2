"""Conversations as other products export them, as frames of our own exports. Pure.

Each product has a tree of messages, of which a person saw one path at a time. Each path from a message of the
user to the next one becomes a run; further versions become branches.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from banksman.gateway.conversations.importing.exports import ExportedEvent

MAX_IMAGE_CHARS = 256 * 1024
"""Characters of the data URL of an image; larger ones are left out by name."""
MAX_REASONING_CHARS = 20_000
Kind = Literal["text", "thinking", "call", "result", "image", "other"]
Assets = Callable[[str], str | None]
"""Returns the data URL of an image by the reference in a message; None if the file does not contain it."""
_THINKING = re.compile(r'<details type="reasoning"[^>]*>\s*(?:<summary>[^<]*</summary>)?([^<]*)</details>')


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


# ---- ChatGPT


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
        nodes = {name: _chatgpt_node(node, assets) for name, node in self.mapping.items()}
        return Tree(self.title or "", "chatgpt", nodes, self.current_node)


def _chatgpt_node(node: _MappedNode, assets: Assets) -> Node:
    message = node.message
    hidden = message is None or message.metadata.get("is_visually_hidden_from_conversation") is True
    if message is None or hidden or message.author.role == "system":
        return Node(node.parent, False, (), None)
    model = str(message.metadata.get("model_slug") or "")
    pieces = tuple(_chatgpt_pieces(message, assets))
    return Node(node.parent, message.author.role == "user", pieces, _time(message.create_time), model)


def _chatgpt_pieces(message: _Message, assets: Assets) -> Iterator[Piece]:
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
            yield _chatgpt_part(part, assets)


def _chatgpt_part(part: dict[str, Any], assets: Assets) -> Piece:
    kind = str(part.get("content_type") or "part")
    if kind == "audio_transcription" and isinstance(part.get("text"), str):
        return Piece("text", part["text"])
    pointer = str(part.get("asset_pointer") or "")
    url = assets(pointer.rpartition("/")[2]) if kind == "image_asset_pointer" else None
    return Piece("other", f"{kind} {pointer}".strip()) if url is None else Piece("image", url)


# ---- Claude


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


class _ClaudeMessage(BaseModel):
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
    chat_messages: list[_ClaudeMessage]
    current_leaf_message_uuid: str | None = None

    def tree(self, _: Assets) -> Tree:
        nodes = dict[str, Node]()
        last = None
        for one in self.chat_messages:
            pieces = tuple(_claude_pieces(one))
            parent = one.parent_message_uuid or last
            nodes[one.uuid] = Node(parent, one.sender == "human", pieces, one.created_at)
            last = one.uuid
        return Tree(self.name or "", "claude", nodes, self.current_leaf_message_uuid or last)


def _claude_pieces(message: _ClaudeMessage) -> Iterator[Piece]:
    for block in message.content or [_Block(type="text", text=message.text)]:
        yield _claude_piece(block)
    for one in (*message.attachments, *message.files):
        if one.extracted_content:
            yield Piece("text", f"{one.file_name}\n\n{one.extracted_content}")
        else:
            yield Piece("other", one.file_name or "file")


def _claude_piece(block: _Block) -> Piece:
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


# ---- Open WebUI


class _WebUiFile(BaseModel):
    type: str = "file"
    url: str | None = None
    name: str | None = None


class _WebUiMessage(BaseModel):
    id: str = ""
    parent: str | None = Field(default=None, alias="parentId")
    role: str
    content: str = ""
    model: str | None = None
    timestamp: float | None = None
    files: list[_WebUiFile] | None = None


class _History(BaseModel):
    messages: dict[str, _WebUiMessage]
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
        nodes = {name: _webui_node(message) for name, message in history.messages.items()}
        return Tree(self.title or self.chat.title or "", "open-webui", nodes, history.current)


def _webui_node(message: _WebUiMessage) -> Node:
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
    return Node(message.parent, is_user, pieces, _time(message.timestamp), message.model or "")


def _time(seconds: float | None) -> datetime | None:
    return None if not seconds or not 0 < seconds < 1e11 else datetime.fromtimestamp(seconds, UTC)


# ---- all


PRODUCTS: Mapping[str, type[ChatGpt | Claude | OpenWebUi]] = {
    "mapping": ChatGpt,
    "chat_messages": Claude,
    "chat": OpenWebUi,
}
"""By the field that only its conversations have."""


def frames_of(tree: Tree, left_out: Counter[str]) -> tuple[ExportedEvent, ...]:
    """Return a tree as frames, the shown path last; `left_out` counts what has no place in them, by name."""
    frames = list[ExportedEvent]()
    last_messages: dict[str, str] = {}
    newest: str | None = None
    for path in _paths(tree):
        before: str | None = None
        for segment in _segments(tree, path):
            if segment[-1] not in last_messages:
                run = _Run(tree, segment, left_out)
                branch = None if before == newest else {"after": before and last_messages[before]}
                frames += run.frames(branch)
                last_messages[segment[-1]], newest = run.last_message, segment[-1]
            before = segment[-1]
    return tuple(frames)


def _paths(tree: Tree) -> Iterator[list[str]]:
    """Yield the path to each leaf, that of the shown one last."""
    parents = {node.parent for node in tree.nodes.values()}
    leaves = [name for name in tree.nodes if name not in parents and name != tree.leaf]
    for leaf in (*leaves, *([tree.leaf] if tree.leaf in tree.nodes else [])):
        path = dict[str, None]()
        name: str | None = leaf
        while name is not None and name in tree.nodes and name not in path:
            path[name] = None
            name = tree.nodes[name].parent
        yield list(reversed(path))


def _segments(tree: Tree, path: list[str]) -> Iterator[list[str]]:
    """Yield a path in pieces: each begins with a message of the user, except what precedes the first."""
    segment = list[str]()
    for name in path:
        node = tree.nodes[name]
        if node.is_user and any(tree.nodes[one].pieces for one in segment):
            yield segment
            segment = []
        if node.pieces:
            segment.append(name)
    if segment:
        yield segment


class _Run:
    """The frames of one message of the user and the replies to it."""

    def __init__(self, tree: Tree, segment: list[str], left_out: Counter[str]) -> None:
        self._nodes = [tree.nodes[name] for name in segment]
        self._left_out = left_out
        self._id = f"{segment[0]}/{segment[-1]}"
        models = [node.model for node in self._nodes if node.model]
        self._model = f"{tree.product}:{models[-1] if models else 'unknown'}"[:200]
        self._frames = list[ExportedEvent]()
        self._at = self._nodes[0].at
        self._iteration = 0
        self._content = ""
        self.last_message = f"{self._id}/0"
        """The id of its last message."""

    def frames(self, branch: dict[str, Any] | None) -> list[ExportedEvent]:
        asked = self._nodes[0].pieces if self._nodes[0].is_user else ()
        started = {"message_id": self.last_message, "message": self._message(asked), "model": self._model}
        self._add("run.started", started if branch is None else started | {"branch": branch})
        replies = self._nodes[1:] if self._nodes[0].is_user else self._nodes
        pieces = list[Piece]()
        for node in replies:
            for piece in node.pieces:
                if piece.kind not in ("call", "result") and any(one.kind == "result" for one in pieces):
                    self._reply(pieces)
                    pieces = []
                self._at = node.at or self._at
                pieces.append(piece)
        self._reply(pieces)
        self._add(
            "run.finished",
            {
                "status": "completed" if replies else "cancelled",
                "content": self._content,
                "service": "banksman",
                "model": self._model,
                "iterations": self._iteration,
            },
        )
        return self._frames

    def _message(self, pieces: tuple[Piece, ...]) -> Any:
        images = [{"type": "image", "url": one.text} for one in pieces if self._is_image(one)]
        self._leave_out(pieces)
        text = _text(pieces)
        return [*([{"type": "text", "text": text}] if text else []), *images] if images else text or "…"

    def _is_image(self, piece: Piece) -> bool:
        return piece.kind == "image" and len(piece.text) <= MAX_IMAGE_CHARS

    def _leave_out(self, pieces: tuple[Piece, ...], *, images: bool = True) -> None:
        for one in pieces:
            if one.kind == "other":
                self._left_out[one.text[:100]] += 1
            elif one.kind == "image" and not (images and self._is_image(one)):
                self._left_out["image"] += 1

    def _reply(self, pieces: list[Piece]) -> None:
        self._leave_out(tuple(pieces), images=False)
        text, thinking = _text(pieces), "\n\n".join(one.text for one in pieces if one.kind == "thinking")
        calls = list(_calls(pieces))
        if not (text or calls or thinking):
            return
        self._iteration += 1
        self._content, self.last_message = text, f"{self._id}/{self._iteration}"
        self._add("iteration.started", {"n": self._iteration, "max": max(10, self._iteration)})
        if thinking:
            cut = {"text": thinking[:MAX_REASONING_CHARS], "characters": len(thinking), "duration_s": 0.0}
            self._add("reasoning.completed", {"message_id": self.last_message, **cut})
        reply = {"role": "assistant", "content": text or None, "model": self._model}
        self._add("message.completed", {"message_id": self.last_message, **reply})
        for at, (call, _) in enumerate(calls):
            named = {"tool_call_id": f"{self.last_message}/{at}", "name": call.name[:256]}
            self._add("tool_call.requested", {**named, "arguments": call.arguments})
        for at, (_, result) in enumerate(calls):
            self._add("tool_call.completed", _result(f"{self.last_message}/{at}", result))

    def _add(self, kind: str, data: dict[str, Any]) -> None:
        iteration = None if kind.startswith("run.") else self._iteration
        self._frames.append(
            ExportedEvent(type=kind, run_id=self._id[:200], iteration=iteration, ts=_utc(self._at), data=data)
        )


def _utc(at: datetime | None) -> datetime | None:
    return at if at is None or at.tzinfo else at.replace(tzinfo=UTC)


def _text(pieces: list[Piece] | tuple[Piece, ...]) -> str:
    return "\n\n".join(one.text for one in pieces if one.kind == "text" and one.text)


def _calls(pieces: list[Piece]) -> Iterator[tuple[Piece, Piece | None]]:
    """Yield each call with its result: that of its id, else the next one without an id of its own."""
    results = [one for one in pieces if one.kind == "result"]
    for call in (one for one in pieces if one.kind == "call"):
        found = next((one for one in results if call.id in ("", one.id) or not one.id), None)
        if found is not None:
            results.remove(found)
        yield call, found
    for result in results:
        yield Piece("call", name=result.name), result


def _result(call_id: str, result: Piece | None) -> dict[str, Any]:
    if result is None:
        content = {"success": False, "error": "The imported file has no result of this call."}
        return {
            "tool_call_id": call_id,
            "content": content,
            "is_error": True,
            "error_kind": "unknown_outcome",
        }
    content = {"success": not result.is_error, "output": result.text[:10_000]}
    kind = "tool_error" if result.is_error else None
    cut = len(result.text) > 10_000
    return {
        "tool_call_id": call_id,
        "content": content,
        "is_error": result.is_error,
        "error_kind": kind,
        "truncated": cut,
    }
