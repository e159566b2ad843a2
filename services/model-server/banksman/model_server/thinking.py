"""Check that clients return thinking blocks unchanged, as Anthropic requires in conversations with tools.

https://docs.anthropic.com/en/docs/build-with-claude/extended-thinking#preserving-thinking-blocks
"""

from __future__ import annotations

import base64
import hashlib
from collections import OrderedDict

from banksman.model_server.chat import AssistantTurn, RequestRefused, ToolOutput, ValidatedRequest
from banksman.model_server.json_values import Json
from banksman.model_server.resolved_reply import ResolvedReply

_MAX_CALLS = 5_000


def signature_of(thinking: str) -> str:
    """Return the signature of a thinking block. The vendor's own algorithm is secret."""
    return base64.b64encode(hashlib.sha256(b"scripted:" + thinking.encode()).digest()).decode()


def signed_thinking(where: str, block: Json) -> str:
    """Return the text of a thinking block.

    Raises:
        RequestRefused: the text does not match the signature.
    """
    thinking = block.get("thinking")
    if not isinstance(thinking, str):
        raise RequestRefused(f"{where}.thinking.thinking: Field required", param="messages")
    if block.get("signature") != signature_of(thinking):
        raise RequestRefused(f"{where}: Invalid `signature` in `thinking` block", param="messages")
    return thinking


class ThinkingChecks:
    """Stores the thinking that was sent with each of the last 5,000 calls."""

    def __init__(self) -> None:
        self._by_call: OrderedDict[tuple[str, str], str] = OrderedDict()

    def sent(self, chat: ValidatedRequest, resolved: ResolvedReply) -> None:
        """Store the thinking of a reply's calls."""
        if chat.dialect != "anthropic":
            return
        for call in resolved.calls:
            self._by_call[(chat.model, call.id)] = resolved.reasoning
            if len(self._by_call) > _MAX_CALLS:
                self._by_call.popitem(last=False)

    def check(self, chat: ValidatedRequest) -> None:
        """Check the thinking of the calls whose results are in the request.

        Raises:
            RequestRefused: the thinking of a call is missing or differs.
        """
        turn = _turn_with_results(chat) if chat.dialect == "anthropic" else None
        for call in turn.calls if turn else ():
            thinking = self._by_call.get((chat.model, call.id))
            if thinking and turn and turn.thinking != (thinking,):
                raise RequestRefused(
                    "messages: the assistant message with tool_use must contain its original thinking block, "
                    f"unchanged; the block of {call.id} is missing",
                    param="messages",
                )


def _turn_with_results(chat: ValidatedRequest) -> AssistantTurn | None:
    """Return the turn whose results end the history; None if the history does not end with results."""
    for item in reversed(chat.items):
        match item:
            case ToolOutput():
                continue
            case AssistantTurn():
                return item
            case _:
                return None
    return None
