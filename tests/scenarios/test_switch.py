"""The whole system with its tools disabled, as an operator does if they cause problems."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import httpx
import pytest

from tests.scenarios.conftest import Play, model_requests
from tests.support.client import Client
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import ScriptedModel, System
from tests.support.timeouts import WAIT_TIMEOUT_S


@pytest.fixture
def plain_system(model: ScriptedModel, tmp_path: Path) -> Generator[System]:
    """A system whose operator disabled tools."""
    settings = {"BANKSMAN_AGENT__TOOLS_ENABLED": "false", "BANKSMAN_LOCAL__AGENTS": "1"}
    system = System(tmp_path / "data", model, settings)
    try:
        system.start()
        yield system
    finally:
        system.close()


async def test_with_tools_disabled_the_system_is_plain_chat(
    plain_system: System, play: Play, model: ScriptedModel
) -> None:
    """R40, R82, R57: tools are enabled for the assistant and disabled for the system; none is offered, none
    runs."""
    call = ScriptedCall(name="bash", arguments={"command": "touch never"})
    written = '{"tool": "bash", "parameters": {"command": "ls"}, "terminate": false}'
    name = play(
        ScriptedReply(text="Only words."),
        ScriptedReply(tool_calls=(call,)),
        ScriptedReply(text="Words again."),
        ScriptedReply(text=written),
    )
    async with Client.connected(plain_system.url, timeout_s=WAIT_TIMEOUT_S) as client:
        conversation = await client.create(name)

        plain = await client.run(conversation, "hi")
        stubborn = await client.run(conversation, "use bash")

        text = {"tool_protocol": "json_text"}
        shown_call = await client.run(conversation, "show me a call", overrides=text)

        async with httpx.AsyncClient(base_url=plain_system.url, timeout=WAIT_TIMEOUT_S) as http:
            shown = (await http.get("/v1/system-prompts/default/enhanced")).json()
        kinds = [e["data"]["error_kind"] for e in client.events(conversation, "tool_call.completed")]
    first = model_requests(model, name)[0]
    assert (plain["status"], plain["content"]) == ("completed", "Only words.")
    assert "tools" not in first and "## Tools" not in first["messages"][0]["content"]
    assert (shown["tools"], "## Tools" in shown["content"]) == ([], False)
    assert (stubborn["content"], kinds) == ("Words again.", ["unknown_tool"])
    assert (shown_call["status"], shown_call["content"], shown_call["tool_calls"]) == (
        "completed",
        written,
        [],
    )
