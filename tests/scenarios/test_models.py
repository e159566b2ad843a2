"""A vendor that hosts the loop, and fallback models."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.scenarios.conftest import PRICED, Play
from tests.support.backboard import BackboardServer
from tests.support.client import Client
from tests.support.commands import run_command
from tests.support.scripted_models import Gate, HttpError, ScriptedCall, ScriptedReply, ScriptedUsage
from tests.support.system import ScriptedModel, System
from tests.support.timeouts import WAIT_TIMEOUT_S

READ = ScriptedCall(name="read_file", arguments={"path": "none"}, id="call_1")
READ_AGAIN = ScriptedCall(name="read_file", arguments={"path": "nothing"}, id="call_2")


@pytest.fixture
async def backboard(backboard_port: int) -> AsyncGenerator[BackboardServer]:
    async with BackboardServer.running(backboard_port) as server:
        yield server
        assert server.violations == []


async def test_a_run_uses_a_backboard_thread(client: Client, backboard: BackboardServer) -> None:
    """R48, R49, R56: its calls are executed, their outputs submitted together, and its thread continues."""
    backboard.play(
        ScriptedReply(text="I look.", tool_calls=(READ, READ_AGAIN)),
        ScriptedReply(text="Neither is there."),
        ScriptedReply(text="Yes."),
    )
    conversation = await client.create("backboard:openai/gpt-4o")

    outcome = await client.run(conversation, "look")
    after = await client.run(conversation, "sure?")

    assert (outcome["content"], outcome["model"]) == ("Neither is there.", "backboard:openai/gpt-4o")
    assert [call["tool"] for call in outcome["tool_calls"]] == ["read_file", "read_file"]
    assert after["content"] == "Yes."
    offered = {tool["function"]["name"] for tool in backboard.requests[0].body["tools"]}
    assert {"bash", "read_file", "write_file", "web_fetch"} <= offered
    [submitted] = [r.body["tool_outputs"] for r in backboard.requests if "submit" in r.path]
    assert [output["tool_call_id"] for output in submitted] == ["call_1", "call_2"]
    assert all(json.loads(output["output"])["success"] is False for output in submitted)
    assert len(backboard.threads) == len(backboard.assistants) == 1


async def test_a_run_uses_a_server_that_the_operator_named(
    client: Client, http: httpx.AsyncClient, play: Play
) -> None:
    """R80: its name is the provider of its models; other names are refused with the known ones."""
    name = play(ScriptedReply(text="From my server.")).replace("openai:", "my-server:", 1)

    outcome = await client.run(await client.create(name), "Hi")
    refused = await client.request("conversation.create", model="your-server:any")
    listed = (await http.get("/context/models")).json()

    assert (outcome["content"], outcome["model"]) == ("From my server.", name)
    assert refused["code"] == "bad_request"
    assert "my-server" in refused["message"]
    assert "my-server:demo" in [model["id"] for model in listed["items"]]


async def test_text_after_the_outputs_streams_to_the_websocket(
    client: Client, backboard: BackboardServer
) -> None:
    """R48: while Backboard still writes; stopping the run then ends the vendor's request."""
    rest_never_comes = Gate(name="never", after_events=3)
    backboard.play(
        ScriptedReply(text="I look.", tool_calls=(READ,)),
        ScriptedReply(text="It is not there.", chunk_chars=6, gate=rest_never_comes),
    )
    conversation = await client.create("backboard:openai/gpt-4o")
    run_id = await client.chat(conversation, "look")
    done = await client.event("tool_call.completed", run_id=run_id)

    def streamed() -> str:
        later = client.frames[client.frames.index(done) :]
        return "".join(frame["data"]["text"] for frame in later if frame["type"] == "message.delta")

    await client.wait_for(lambda _: streamed() == "It is not th")
    assert [r.outcome for r in backboard.requests if "submit" in r.path] == ["open"]
    await client.request("run.cancel", run_id=run_id)

    assert (await client.finished(run_id))["status"] == "cancelled"
    await backboard.wait_for("/submit-tool-outputs", "disconnected")


async def test_a_fallback_model_is_named_and_its_cost_counted(
    client: Client, http: httpx.AsyncClient, model: ScriptedModel
) -> None:
    """A rate limit of a vendor does not end a run whose assistant names another model."""
    limited = HttpError(status=429, retry_after_s=3600)
    usage = ScriptedUsage(input_tokens=2, output_tokens=1)
    model.play("first", [ScriptedReply(text="x", fault=limited)], by="count", at_end="repeat")
    model.play(
        PRICED,
        [ScriptedReply(tool_calls=(READ,), usage=usage), ScriptedReply(text="Here I am.", usage=usage)],
    )
    fields: dict[str, Any] = {
        "model": "openai:scripted/first",
        "fallback_models": [f"anthropic:scripted/{PRICED}"],
        "tools": {"enabled": True},
    }
    response = await http.post("/context/assistants", json=fields)
    assert response.status_code == 201, response.text
    conversation = await client.create(assistant=response.json()["id"])

    outcome = await client.run(conversation, "hello")

    assert (outcome["status"], outcome["content"]) == ("completed", "Here I am.")
    assert outcome["model"] == f"anthropic:scripted/{PRICED}"
    assert outcome["usage"]["cost_usd"] == 6
    said = [event["data"]["model"] for event in client.events(conversation, "message.completed")]
    assert said == [f"anthropic:scripted/{PRICED}"] * 2
    assert len(model.requests("first")) == 2


async def test_a_run_waits_for_an_overloaded_model_and_shows_it(client: Client, model: ScriptedModel) -> None:
    busy = HttpError(status=529, message="Overloaded.", times=2)
    model.play("busy", [ScriptedReply(text="Here I am.", fault=busy)])
    conversation = await client.create("anthropic:scripted/busy")

    outcome = await client.run(conversation, "hello")

    waits = [frame["data"] for frame in client.frames if frame["type"] == "model.waiting"]
    assert (outcome["status"], outcome["content"]) == ("completed", "Here I am.")
    assert sorted({wait["attempt"] for wait in waits}) == [1, 2]
    assert {(wait["model"], wait["reason"]) for wait in waits} == {("anthropic:scripted/busy", "overloaded")}
    assert all(wait["next_attempt_s"] >= 0 and "Overloaded." in wait["error"] for wait in waits)


@pytest.fixture
def own_system(model: ScriptedModel, tmp_path: Path) -> Generator[System]:
    """A system whose agent warns; other tests expect none of the shared one."""
    system = System(tmp_path / "data", model, {"BANKSMAN_LOCAL__AGENTS": "1"})
    try:
        system.start()
        yield system
    finally:
        system.close()


async def test_a_server_that_cuts_prompts_is_named_in_the_run_and_to_the_operator(
    own_system: System, model: ScriptedModel
) -> None:
    """R79: by the page, whose steps show the notice, and by `banksman doctor`."""
    usage = ScriptedUsage(input_tokens=4_096, output_tokens=3)
    model.play("cutting", [ScriptedReply(text="Yes.", usage=usage)])
    name = "openai:scripted/cutting"
    async with Client.connected(own_system.url, timeout_s=WAIT_TIMEOUT_S) as client:
        conversation = await client.create(name)
        await client.run(conversation, "word " * 16_000)
        notices = [event["data"] for event in client.events(conversation, "model.notice")]
    environment = own_system.variables | {"BANKSMAN_DATA_DIR": str(own_system.data_dir)}
    doctor = await asyncio.to_thread(run_command, "doctor", "--json", environment=environment)

    assert [notice["kind"] for notice in notices] == ["prompt_cut"]
    assert "4096" in notices[0]["text"]
    assert f"{name}: The model's server counted 4096 tokens" in doctor.stdout
