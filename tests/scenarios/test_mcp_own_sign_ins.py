"""A server of tools at which each user signs in, in whole runs of users with and without a sign-in."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import httpx
import pytest

from banksman import sdk
from banksman.contracts.ids import new_id
from tests.scenarios.conftest import Play
from tests.scenarios.test_assistants import created
from tests.scenarios.test_built_workflows import ended
from tests.scenarios.test_mcp_servers import AUTO, SERVERS, approved
from tests.support.client import Client
from tests.support.mcp_oauth import Protected, protected
from tests.support.scripted_models import ScriptedCall, ScriptedReply


@pytest.fixture
async def remote(mcp_port: int) -> AsyncGenerator[Protected]:
    async with protected(mcp_port) as served:
        yield served


@pytest.fixture
async def server(http: httpx.AsyncClient, remote: Protected) -> AsyncGenerator[str]:
    """The id of a server at which the user of the HTTP API has signed in."""
    server_id = new_id("m")[:20].lower()
    transport = {"type": "http", "url": remote.url}
    await http.post(SERVERS, json={"id": server_id, "transport": transport, "sign_in": "user"})
    begun = (await http.post(f"{SERVERS}/{server_id}/sign-in")).raise_for_status().json()
    async with httpx.AsyncClient(verify=False, follow_redirects=True, cookies=http.cookies) as browser:
        (await browser.get(begun["url"])).raise_for_status()
    await approved(http, (await http.get(f"{SERVERS}/{server_id}")).json())
    yield server_id
    (await http.delete(f"{SERVERS}/{server_id}")).raise_for_status()


async def test_a_run_uses_the_access_of_its_user_and_another_users_run_learns_where_to_sign_in(
    client: Client,
    http: httpx.AsyncClient,
    nats: sdk.Client,
    play: Play,
    remote: Protected,
    server: str,
) -> None:
    call = ScriptedReply(tool_calls=(ScriptedCall(name=f"{server}__echo", arguments={}),))
    name = play(call, ScriptedReply(text="done"), call, ScriptedReply(text="not signed in"))
    assistant = await created(http, model=name, **AUTO)
    conversation = await client.create(assistant=assistant)
    first = await client.run(conversation, "Read my issues.")
    run = await nats.send(conversation, "And mine?")
    other = await nats.outcome(run)
    events = (await http.get(f"/context/conversations/{conversation}/events")).json()["items"]
    results = [one["data"] for one in events if one["type"] == "tool_call.completed"]

    assert (first["status"], other.status, other.content) == ("completed", "completed", "not signed in")
    assert remote.callers == ["ada"]
    assert [result["is_error"] for result in results] == [False, True]
    content = results[1]["content"]
    assert content["sign_in"] is True
    assert f"the server '{server}' needs a sign-in by the user 'nats'" in content["error"]
    assert f"banksman mcp sign-in {server} --own" in content["error"]


async def test_a_workflow_and_the_runs_that_it_starts_act_for_the_user_who_started_it(
    http: httpx.AsyncClient, play: Play, remote: Protected, server: str
) -> None:
    name = new_id("built-")
    call = ScriptedReply(tool_calls=(ScriptedCall(name=f"{server}__echo", arguments={}),))
    assistant = await created(http, model=play(call, ScriptedReply(text="Read.")), **AUTO)
    steps = [
        {"type": "tool", "name": "own", "tool": f"{server}__echo", "arguments": {}},
        {"type": "prompt", "name": "agent", "prompt": "Read the issues.", "tools": None},
    ]
    made = await http.post("/workflows", json={"name": name, "built": {"steps": steps}})
    assert made.status_code == 201, made.text
    conversation = (await http.post("/context/conversations", json={"assistant": assistant})).json()
    run = await http.post(
        f"/workflows/{name}/runs",
        json={"parameters": {}, "conversation_id": conversation["conversation_id"]},
    )
    end = await ended(http, run.raise_for_status().json())

    assert end["status"] == "completed", end
    assert remote.callers == ["ada", "ada"]


async def test_a_token_that_the_server_refuses_needs_another_sign_in(
    http: httpx.AsyncClient, remote: Protected, server: str
) -> None:
    before = (await http.get("/context/mcp-accounts")).json()["items"]
    remote.authorizations.revoke("ada")
    await http.post(f"{SERVERS}/{server}/look")
    after = (await http.get("/context/mcp-accounts")).json()["items"]

    assert [one["needs_sign_in"] for one in (*before, *after) if one["id"] == server] == [False, True]
