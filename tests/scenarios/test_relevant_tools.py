"""With more tools than one request may contain, the relevant ones for the conversation are offered."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import httpx
import pytest

from banksman.contracts.ids import new_id
from banksman.prompting.enhance import DEFAULT_MAX_TOOLS
from banksman.sdk import Toolbox, ToolServer
from tests.scenarios.conftest import Play, model_requests
from tests.scenarios.test_tool_registry import local, observer, served
from tests.support.client import Client
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import ScriptedModel, System

# The first test of a session starts the whole system, which is slow on a busy machine.
pytestmark = pytest.mark.timeout(180)

__all__ = ["observer"]

THEMES = ("harbour", "orchard", "observatory", "quarry")
MANY = 19
"""The tools of each theme; with those of the workspace they exceed one request."""


@pytest.fixture
async def crowd(system: System, observer: ToolServer) -> AsyncGenerator[str]:
    """Serve 76 tools in a process; yields the common prefix of their names."""
    box, mark = Toolbox(), new_id("z").replace("-", "")[:12]

    def add(theme: str, number: int) -> None:
        @box.tool(name=f"{mark}_{theme}_{number}", category=theme)
        def inspect() -> str:
            """Inspect it."""
            return f"The {theme} is well."

    for theme in THEMES:
        for number in range(MANY):
            add(theme, number)
    async with ToolServer(new_id("crowd-"), box, nats=local(system), drain_s=0):
        await served(observer, f"{mark}_{THEMES[-1]}_{MANY - 1}")
        yield mark


def names(body: dict[str, Any]) -> set[str]:
    """Return the names of the tools that a request offers."""
    return {tool["function"]["name"] for tool in body["tools"]}


async def test_message_history_and_assistant_select_among_many_tools(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel, crowd: str
) -> None:
    """R26, R33: categories in the message are complete; called and pinned tools stay."""
    lonely, pinned = f"{crowd}_quarry_{MANY - 1}", f"{crowd}_orchard_{MANY - 1}"
    model_name = play(
        ScriptedReply(tool_calls=(ScriptedCall(name=lonely, arguments={}),)),
        ScriptedReply(text="Well."),
        ScriptedReply(text="Bye."),
    )
    settings = {"enabled": True, "always_offered": [pinned]}
    made = await http.post("/context/assistants", json={"model": model_name, "tools": settings})
    conversation = await client.create(assistant=made.json()["id"])

    await client.run(conversation, f"Look at the observatory and the harbour with {lonely}.")
    await client.run(conversation, "And now the orchard?")

    # On a busy machine a request may be retried.
    by_history = {len(body["messages"]): body for body in model_requests(model, model_name)}
    first, after_the_call, second = (names(body) for _, body in sorted(by_history.items()))
    for offered in (first, after_the_call, second):
        assert len(offered) == DEFAULT_MAX_TOOLS
        assert {pinned, lonely} <= offered
    for theme in ("observatory", "harbour"):
        assert {f"{crowd}_{theme}_{number}" for number in range(MANY)} <= first & after_the_call
    assert {f"{crowd}_orchard_{number}" for number in range(MANY)} <= second


async def test_a_run_shows_which_tools_were_left_out_and_why(
    client: Client, http: httpx.AsyncClient, play: Play, crowd: str
) -> None:
    """R33: once for each run, in its events and its steps."""
    call = ScriptedCall(name=f"{crowd}_quarry_3", arguments={})
    model_name = play(ScriptedReply(tool_calls=(call,)), ScriptedReply(text="Well."))
    conversation = await client.create(model_name)

    run_id = await client.chat(conversation, f"Use {crowd}_quarry_3.")
    outcome = await client.finished(run_id)
    steps = (await http.get(f"/context/runs/{run_id}/steps")).json()["items"]

    [notice] = client.events(conversation, "model.notice")
    [step] = [one for one in steps if one["kind"] == "notice"]
    assert outcome["content"] == "Well."
    assert (notice["data"]["kind"], step["name"]) == ("tool_left_out", "tool_left_out")
    text = notice["data"]["text"]
    assert text.startswith(f"The model is offered {DEFAULT_MAX_TOOLS} of ")
    assert f"room for {DEFAULT_MAX_TOOLS}, with" in text and f", {crowd}_" in text
    assert f"{crowd}_quarry_3 " not in f"{text} " and len(text) <= 500


async def test_the_enhanced_prompt_shows_the_tool_selection_of_a_conversation(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel, crowd: str
) -> None:
    """R25, R26: the tools that a run would be offered are readable in advance."""
    name = play(ScriptedReply(text="ok"), ScriptedReply(text="ok"))
    conversation = await client.create(name)
    await client.run(conversation, "Tell me of the quarry.")

    shown = await http.get(
        "/v1/system-prompts/default/enhanced",
        params={"protocol": "native", "conversation_id": conversation, "user_message": "And the harbour?"},
    )
    await client.run(conversation, "And the harbour?")

    enhanced = shown.json()
    relevant = {f"{crowd}_{theme}_{number}" for theme in ("quarry", "harbour") for number in range(MANY)}
    assert relevant <= set(enhanced["tools"]) & names(model_requests(model, name)[-1])
    assert len(enhanced["tools"]) == DEFAULT_MAX_TOOLS and enhanced["dropped_tools"]
