"""What a log at the level `debug` has of model requests, for the analysis of a run."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.scenarios.conftest import Play, logged
from tests.support.client import Client
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import ScriptedModel, System
from tests.support.timeouts import WAIT_TIMEOUT_S

READ = ScriptedReply(tool_calls=(ScriptedCall(name="read_file", arguments={"path": "none"}),))
BROKEN = '{"tool": "read_file", "parameters": '


@pytest.fixture
def talkative_system(model: ScriptedModel, tmp_path: Path) -> Generator[System]:
    """A system that logs everything."""
    settings = {"BANKSMAN_LOG__LEVEL": "debug", "BANKSMAN_LOCAL__AGENTS": "1"}
    system = System(tmp_path / "data", model, settings)
    try:
        system.start()
        yield system
    finally:
        system.close()


async def test_every_request_and_every_reply_of_a_run_is_logged_with_the_run(
    talkative_system: System, play: Play
) -> None:
    """R89, R32: the number of each iteration, and what the model wrote, also in unreadable calls."""
    text = {"tool_protocol": "json_text"}
    async with Client.connected(talkative_system.url, timeout_s=WAIT_TIMEOUT_S) as client:
        conversation = await client.create(play(READ, READ, ScriptedReply(text="Finished.")))
        native = await client.chat(conversation, "go")
        await client.finished(native)
        replies = [ScriptedReply(text=f"{BROKEN}{number}") for number in range(1, 5)]
        broken = await client.create(play(*replies), settings=text)
        failed = await client.chat(broken, "go")
        outcome = await client.finished(failed)

    for iteration in (1, 2, 3):
        await logged(talkative_system, "agent", "requesting the model", run_id=native, iteration=iteration)
    await logged(talkative_system, "agent", "the model wrote", run_id=native, text="Finished.")
    assert outcome["error"]["code"] == "malformed_calls"
    for number in range(1, 5):
        line = await logged(
            talkative_system, "agent", "the model's call could not be read", run_id=failed, attempt=number
        )
        assert (line["level"], "JSON" in line["error"]) == ("warning", True)
        await logged(talkative_system, "agent", "the model wrote", run_id=failed, text=f"{BROKEN}{number}")
