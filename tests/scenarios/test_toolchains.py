"""The toolchain of an assistant, from its settings to the commands of its runs."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.scenarios.conftest import Play
from tests.scenarios.test_assistants import TOOLS_ON, created
from tests.support.client import Client
from tests.support.replies import bash
from tests.support.scripted_models import ScriptedReply

AUTO = [{"action": "auto"}]


@pytest.mark.parametrize(
    ("toolchain", "seen"), [(None, "-"), ("greeting", "hello"), ("unknown", "unavailable")]
)
async def test_commands_of_an_assistant_have_its_toolchain(
    client: Client, http: httpx.AsyncClient, play: Play, toolchain: str | None, seen: str
) -> None:
    name = play(bash("echo -n ${GREETING:--}"), ScriptedReply(text="ok"))
    tools: dict[str, Any] = {**TOOLS_ON, **({} if toolchain is None else {"toolchain": toolchain})}
    assistant = await created(http, model=name, tools=tools, approval_policy=AUTO)
    outcome = await client.run(await client.create(assistant=assistant), "go")
    result = outcome["tool_calls"][0]["result"]
    assert result.get("error_kind", result.get("stdout")) == seen
