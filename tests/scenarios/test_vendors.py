"""Runs of the whole system with vendors that refuse what the real ones refuse."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import httpx
import pytest

from tests.support.client import Client
from tests.support.vendors.anthropic import Anthropic
from tests.support.vendors.base import Brain, Call, Prompt, StandIn, Turn
from tests.support.vendors.deepseek import DeepSeek
from tests.support.vendors.gemini_openai import GeminiOpenAI
from tests.support.vendors.mistral import Mistral
from tests.support.vendors.ollama import Ollama
from tests.support.vendors.openai_chat import OpenAIChat
from tests.support.vendors.openai_responses import OpenAIResponses

Serve = Callable[[str, Brain], AbstractAsyncContextManager[StandIn]]
STAND_INS: dict[str, type[StandIn]] = {
    "claude": Anthropic,
    "deepseek": DeepSeek,
    "gemini": GeminiOpenAI,
    "gpt": OpenAIChat,
    "gpt-responses": OpenAIResponses,
    "mistral": Mistral,
    "ollama": Ollama,
}
LOOK = "Look for notes.txt and for plan.txt."


@pytest.fixture
def serve(vendors: dict[str, dict[str, str]]) -> Serve:
    """A function that serves a provider's stand-in at its address in the system's settings."""

    def running(provider: str, brain: Brain) -> AbstractAsyncContextManager[StandIn]:
        stand_in, entry = STAND_INS[provider], vendors[provider]
        url = entry["base_url"].removesuffix(stand_in.prefix)
        assert entry == stand_in.entry(url)
        return stand_in.running(brain, int(url.rpartition(":")[2]))

    return running


def model_of(provider: str) -> str:
    return f"{provider}:{STAND_INS[provider].model}"


def looking(prompt: Prompt) -> Turn:
    """Read both files in one reply, and again when the user asks again."""
    if len(prompt.results) < 2:
        calls = tuple(Call("read_file", {"path": path}) for path in ("notes.txt", "plan.txt"))
        return Turn(reasoning="Both may be there.", calls=calls, thinks_between=True)
    return Turn(text="Neither is there.")


@pytest.mark.parametrize("provider", STAND_INS)
async def test_parallel_calls_with_reasoning_are_executed_in_two_runs_of_a_conversation(
    client: Client, http: httpx.AsyncClient, serve: Serve, provider: str
) -> None:
    """R80, R85, R92: the tools of the workspace are offered, and the state of the replies goes back."""
    settings = {"tools": {"enabled": True}, "options": {"reasoning_effort": "low", "max_tokens": 8_000}}
    created = await http.post("/context/assistants", json={"model": model_of(provider), **settings})
    async with serve(provider, looking):
        conversation = await client.create(assistant=created.json()["id"])
        outcomes = [await client.run(conversation, LOOK) for _ in range(2)]

    assert [(one["status"], one["content"]) for one in outcomes] == [("completed", "Neither is there.")] * 2
    assert [call["tool"] for one in outcomes for call in one["tool_calls"]] == ["read_file"] * 4


async def test_a_conversation_moves_between_vendors(client: Client, serve: Serve) -> None:
    """Ids, signatures and reasoning of one vendor are not sent to another."""
    async with serve("claude", looking), serve("mistral", looking), serve("gemini", looking):
        conversation = await client.create(model_of("claude"))
        outcomes = [
            await client.run(conversation, LOOK, overrides={"model": model_of(one)})
            for one in ("claude", "mistral", "gemini", "claude")
        ]

    assert [one["status"] for one in outcomes] == ["completed"] * 4
    providers = [one["model"].partition(":")[0] for one in outcomes]
    assert providers == ["claude", "mistral", "gemini", "claude"]


@pytest.mark.parametrize("provider", ["claude", "gemini", "mistral"])
async def test_a_refusal_for_its_length_compacts_the_history_and_repeats_the_request(
    client: Client, serve: Serve, provider: str
) -> None:
    """The context of the stand-in is smaller than the model's usual one, as at a server with a low limit."""

    def talking(prompt: Prompt) -> Turn:
        return Turn(text="word " * 8_000 if "at length" in prompt.user else "Done.")

    async with serve(provider, talking) as server:
        conversation = await client.create(model_of(provider))
        for _ in range(5):
            await client.run(conversation, "Write at length.")
        outcome = await client.run(conversation, "Stop.")

    assert (outcome["status"], outcome["content"]) == ("completed", "Done.")
    assert len(server.refusals) == len(client.events(conversation, "history.compacted")) == 1
