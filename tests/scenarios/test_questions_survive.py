"""What a server asks of a user while its runner, or the agent of its run, is killed: nothing stays open."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.scenarios.conftest import Play
from tests.scenarios.test_assistants import created
from tests.scenarios.test_mcp_servers import AUTO, approved, configured
from tests.support.client import Client
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import ScriptedModel, System, kill

pytestmark = pytest.mark.timeout(240)
"""Seconds; processes are restarted, which is slow on a busy machine."""
WAIT_S = 40.0
"""Seconds within which a user may answer."""
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@pytest.fixture(scope="module")
def own_system(model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory) -> Generator[System]:
    environment = {"BANKSMAN_TOOL_RUNNER__LIMITS__SANDBOX__SESSION_IDLE_S": str(WAIT_S)}
    system = System(tmp_path_factory.mktemp("questions"), model, environment)
    try:
        system.start()
        yield system
    finally:
        system.close()


@asynccontextmanager
async def asked(system: System, play: Play) -> AsyncGenerator[tuple[Client, str, dict[str, Any]]]:
    """Yield a client, a run that waits for its user, and the data of the request."""
    async with (
        Client.connected(system.url, timeout_s=2 * WAIT_S) as client,
        httpx.AsyncClient(base_url=system.url, timeout=30) as http,
        configured(http) as server,
    ):
        await approved(http, server)
        question = json.dumps({"message": "Who?", "requestedSchema": FORM})
        call = ScriptedCall(name=f"{server['id']}__ask", arguments={"text": question})
        model = play(ScriptedReply(tool_calls=(call,)), ScriptedReply(text="done"))
        conversation = await client.create(assistant=await created(http, model=model, **AUTO))
        run_id = await client.chat(conversation, "Ask me.")
        request = await client.event("input.requested", run_id=run_id)
        yield client, run_id, request["data"]
        assert (await http.get("/context/inputs")).json()["items"] == []


async def ended(client: Client, run_id: str) -> dict[str, Any]:
    """Return the result of the only call of a run, which goes on to its end."""
    outcome = await client.finished(run_id)
    assert (outcome["status"], outcome["content"]) == ("completed", "done")
    [call] = outcome["tool_calls"]
    return call["result"]


def kill_all(system: System, service: str) -> None:
    pids = system.service_pids(service)
    assert pids, f"no process of {service}"
    for pid in pids:
        kill(pid)


async def test_an_answer_reaches_the_server_although_the_agent_was_killed(
    own_system: System, play: Play
) -> None:
    async with asked(own_system, play) as (client, run_id, request):
        kill_all(own_system, "agent")
        await client.request("input.reply", request_id=request["request_id"], value={"name": "Ada"})
        result = await ended(client, run_id)
    assert "Ada" in json.dumps(result)


async def test_an_answer_after_the_runner_was_killed_leaves_an_unknown_outcome_which_the_model_gets(
    own_system: System, play: Play
) -> None:
    async with asked(own_system, play) as (client, run_id, request):
        kill_all(own_system, "tool-runner")
        ack = await client.request("input.reply", request_id=request["request_id"], value={"name": "Ada"})
        result = await ended(client, run_id)
    assert ack["outcome"] == "provided"
    assert result["error_kind"] == "unknown_outcome"
    assert "the server's session ended before the user's answer arrived" in result["error"]


async def test_a_request_whose_runner_was_killed_ends_without_an_answer(
    own_system: System, play: Play
) -> None:
    async with asked(own_system, play) as (client, run_id, request):
        kill_all(own_system, "tool-runner")
        resolved = await client.event("input.resolved", run_id=run_id)
        result = await ended(client, run_id)
    assert (resolved["data"]["request_id"], resolved["data"]["outcome"]) == (request["request_id"], "expired")
    assert result["error_kind"] == "unknown_outcome"
