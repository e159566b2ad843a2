"""AG-UI's client for JavaScript against the whole system."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.scenarios.conftest import Play
from tests.support.node import installed
from tests.support.paths import ROOT
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import System
from tests.support.timeouts import WAIT_TIMEOUT_S


@pytest.fixture
def agui_client(tmp_path: Path) -> Path:
    """The program that uses `@ag-ui/client`, which is installed by its lock file."""
    return installed(ROOT / "tests/gateway/agui/node", tmp_path / "client")


async def output_of(folder: Path, *command: str) -> bytes:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=folder, stdout=pipe, stderr=pipe)
    async with asyncio.timeout(2 * WAIT_TIMEOUT_S):
        output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    return output


async def test_aguis_client_runs_an_agent_edits_a_call_and_resumes(
    system: System, play: Play, agui_client: Path
) -> None:
    """Interfaces, section 1: run, text, tool events, approval as interrupt, resume, state."""
    call = ScriptedCall(name="bash", arguments={"command": "echo requested"})
    model = play(
        ScriptedReply(text="I list them.", tool_calls=(call,)),
        ScriptedReply(text="All done.", chunk_chars=3, chunk_delay_s=0.01),
    )
    arguments = (f"{system.url}/agui", model, "Which files?", "echo edited")
    found: dict[str, Any] = json.loads(await output_of(agui_client, "node", "thread.mjs", *arguments))

    (interrupt,) = found["interrupts"]
    user, asked, result, last = found["messages"]
    assert interrupt["message"] == "Allow bash: echo requested" and found["left"] == []
    assert (user["id"], user["content"]) == ("u1", "Which files?")
    assert asked["content"] == "I list them." and asked["toolCalls"][0]["id"] == interrupt["toolCallId"]
    assert "edited" in result["content"] and "requested" not in json.loads(result["content"])["stdout"]
    assert (last["role"], last["content"]) == ("assistant", "All done.")
    assert (found["result"]["status"], found["state"]["banksman"]["status"]) == ("completed", "completed")
    assert found["events"].count("RUN_STARTED") == found["events"].count("RUN_FINISHED") == 2
    assert found["events"].count("TEXT_MESSAGE_CONTENT") > 2
    contents = [message.get("content") for message in found["messages"]]
    assert [message.get("content") for message in found["loaded"]] == contents
