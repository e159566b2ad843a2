"""Tracks which requests to a user are open, so that a replayed frame of a resolved request is recognised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from banksman.gateway.conversations.view import ConversationView


@dataclass(frozen=True, slots=True)
class OpenRequests:
    """The requests that waited for a user when a conversation was read."""

    seq: int
    """Number of the last event that was read. Requests up to it that are not in `ids` are decided."""
    ids: frozenset[str]

    @classmethod
    def of(cls, view: ConversationView) -> Self:
        """Return the open approval requests and requests for a value of a conversation."""
        return cls(view.last_seq, frozenset({*view.approvals, *view.inputs}))

    def waits(self, frame: dict[str, Any], request_id: str) -> bool:
        """Return whether the request of a frame may be open, as any request after the last read event may."""
        return frame["seq"] > self.seq or request_id in self.ids
