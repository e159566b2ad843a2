"""The cache of Anthropic's API is searched at most 20 blocks before each mark."""

from __future__ import annotations

import json

from tools.model_features import ADD, execute
from tools.model_talk import Talk

from tests.support.vendors.anthropic import Anthropic
from tests.support.vendors.base import Call, Prompt, Turn
from tests.vendors.connected import connected

LONG = "A long message. " * 1_500


async def test_a_reply_with_many_calls_leaves_the_earlier_messages_in_reach_of_the_cache() -> None:
    def adding(prompt: Prompt) -> Turn:
        calls = tuple(Call("add", {"a": number, "b": number}) for number in range(32))
        return Turn(text="Done.") if prompt.results else Turn(calls=calls)

    async with connected(Anthropic, adding) as (server, provider):
        talk = Talk(provider, server.model, tools=(ADD,), execute=execute)
        await talk.say(LONG)
        await talk.say("Again.")

    read = [reply.usage.cached_tokens for reply in talk.replies]
    assert read[0] == 0
    assert min(read[1:]) > len(LONG) // 4


async def test_marks_stay_below_their_maximum_however_long_the_conversation_is() -> None:
    async with connected(Anthropic, lambda _: Turn(text="Noted.")) as (server, provider):
        talk = Talk(provider, server.model)
        for number in range(40):
            await talk.say(f"Note {number}: {LONG[:200]}")

    marks = [json.dumps(body).count('"cache_control"') for body in server.bodies]
    assert max(marks) <= 4
    written = [reply.usage.cache_written_tokens for reply in talk.replies]
    assert max(written[1:]) < 200
