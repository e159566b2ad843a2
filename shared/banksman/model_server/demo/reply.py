from __future__ import annotations

from banksman.model_server.chat import ChatRequest
from banksman.model_server.script import Reply


def demo_reply(chat: ChatRequest, *, chunk_delay_s: float) -> Reply:
    """What the demo model says next; everything follows from the request alone."""
    return Reply(text="I am a demo model: rules, no language model.", chunk_delay_s=chunk_delay_s)
