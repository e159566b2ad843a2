"""Gemini's own API returns the model's thoughts only on request, and models that do not think refuse that."""

from __future__ import annotations

from typing import ClassVar

import pytest
from tools.model_talk import Talk

from tests.support.vendors.base import Json, Turn
from tests.support.vendors.gemini import Gemini
from tests.vendors.connected import connected

THOUGHTS = "Berlin, says the map."
ANSWER = Turn(text="Berlin", reasoning=THOUGHTS)


class WithoutThoughts(Gemini):
    """A Gemini model that does not think. The library does not know that of its name."""

    asked: ClassVar[list[bool]]
    reason: ClassVar[str]

    def check(self, body: Json) -> None:
        super().check(body)
        thoughts = "thinkingConfig" in body.get("generationConfig", {})
        self.asked.append(thoughts)
        if thoughts:
            raise self.refusal(self.reason)


async def test_thoughts_are_requested_and_shown_without_a_stated_effort() -> None:
    async with connected(Gemini, lambda _: ANSWER) as (server, provider):
        talk = Talk(provider, server.model)
        assert await talk.say("Where?") == "Berlin"
        assert talk.reasoning == THOUGHTS
    assert server.bodies[0]["generationConfig"]["thinkingConfig"] == {"include_thoughts": True}


@pytest.mark.parametrize(
    "reason",
    [
        "Thinking is not enabled for models/gemini-3-pro-preview",
        "Unable to submit request because Thinking_config.include_thoughts is only enabled when thinking is "
        "enabled.",
    ],
)
async def test_a_model_that_refuses_thoughts_is_asked_without_and_remembered(reason: str) -> None:
    class Refusing(WithoutThoughts):
        asked: ClassVar[list[bool]] = []

    Refusing.reason = reason
    async with connected(Refusing, lambda _: ANSWER) as (server, provider):
        talk = Talk(provider, server.model)
        assert await talk.say("Where?") == "Berlin"
        assert await talk.say("Where?") == "Berlin"
    assert Refusing.asked == [True, False, False]
