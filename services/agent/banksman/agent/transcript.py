"""The older part of a history as one text, for the model that summarises it. Pure."""

from __future__ import annotations

from typing import assert_never

from banksman.agent.protocols.flatten import flatten, prose_call, result_text
from banksman.contracts.messages import AssistantMessage, Message, ToolMessage, UserMessage, text_of

PIECE_CHARS = (4_000, 1_000, 250)
"""Maximum characters of one message, in the order in which they are tried until the transcript fits."""
_GAP = "\n\n"


def transcript(messages: tuple[Message, ...], max_chars: int) -> str:
    """Return the messages with their roles in at most `max_chars` characters; long ones lose their middle."""
    texts = [
        ("User" if isinstance(message, UserMessage) else "Assistant", _text(message))
        for message in flatten(messages, prose_call, lambda _: True)
    ]
    joined = ""
    for piece in PIECE_CHARS:
        joined = _GAP.join(f"{role}: {shortened(text, piece)}" for role, text in texts if text)
        if len(joined) <= max_chars:
            return joined
    return shortened(joined, max_chars)


def shortened(text: str, max_chars: int) -> str:
    """Return a text whose middle is replaced by a note of the text's length."""
    if len(text) <= max_chars:
        return text
    note = f" [… {len(text)} characters in all …] "
    room = max(0, max_chars - len(note))
    tail = room // 3
    return (text[: room - tail] + note + (text[-tail:] if tail else ""))[:max_chars]


def _text(message: Message) -> str:
    match message:
        case UserMessage(content=content):
            return text_of(content)
        case AssistantMessage(content=content):
            return (content or "").strip()
        case ToolMessage():
            return result_text(message)
        case _:
            assert_never(message)
