"""The conversations of other products as frames of our own exports. Pure.

Each path from a message of the user to the next one becomes a run; further versions become branches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from banksman.gateway.conversations.importing.exports import ExportedEvent
from banksman.gateway.conversations.importing.products.trees import Piece, Tree

MAX_IMAGE_CHARS = 256 * 1024
"""Characters of the data URL of an image; larger ones are left out by name."""
MAX_REASONING_CHARS = 20_000


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
