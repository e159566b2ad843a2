"""A published MCP server in whole runs: approval, a call, what it asks of the user, images for models."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from a2a.client import ClientConfig, create_client
from a2a.types.a2a_pb2 import Part
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value

from banksman.contracts.ids import new_id
from tests.scenarios.conftest import Play
from tests.scenarios.test_a2a import last_state, user_message
from tests.scenarios.test_assistants import TOOLS_ON, created
from tests.scenarios.test_mcp_servers import SERVERS, approved
from tests.scenarios.test_vendors import Serve, model_of, serve
from tests.support.client import Client
from tests.support.mcp_programs import node_packages
from tests.support.polling import wait_until
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import START_TIMEOUT_S, System
from tests.support.vendors.base import Call, Prompt, Turn

__all__ = ["serve"]
pytestmark = pytest.mark.timeout(240)
"""Seconds; Node starts slowly on a busy machine."""
AUTO: dict[str, Any] = {"tools": TOOLS_ON, "approval_policy": [{"action": "auto"}]}


def responds(address: str) -> bool:
    try:
        return httpx.get(address).status_code > 0
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module")
def everything(mcp_port: int) -> Generator[str]:
    """The address of server-everything."""
    program = node_packages() / "@modelcontextprotocol/server-everything/dist/index.js"
    environment = {**os.environ, "PORT": str(mcp_port)}
    null = subprocess.DEVNULL
    process = subprocess.Popen(["node", program, "streamableHttp"], env=environment, stdout=null, stderr=null)
    address = f"http://127.0.0.1:{mcp_port}/mcp"
    try:
        wait_until(lambda: responds(address), START_TIMEOUT_S)
        yield address
    finally:
        process.kill()
        process.wait()


@asynccontextmanager
async def offered(http: httpx.AsyncClient, url: str) -> AsyncGenerator[str]:
    """Configure the server and approve its tools; yield its id."""
    server_id = new_id("m")[:20].lower()
    body = {"id": server_id, "transport": {"type": "http", "url": url}}
    server = (await http.post(SERVERS, json=body)).raise_for_status().json()
    assert server.get("problem") is None
    await approved(http, server)
    yield server_id
    (await http.delete(f"{SERVERS}/{server_id}")).raise_for_status()


def calling(play: Play, server: str, tool: str, **arguments: Any) -> str:
    call = ScriptedCall(name=f"{server}__{tool}", arguments=arguments)
    return play(ScriptedReply(tool_calls=(call,)), ScriptedReply(text="done"))


async def test_a_call_of_a_published_server_is_approved_and_its_result_reaches_the_model(
    client: Client, http: httpx.AsyncClient, play: Play, everything: str
) -> None:
    async with offered(http, everything) as server:
        model = calling(play, server, "echo", message="hello")
        conversation = await client.create(assistant=await created(http, model=model, tools=TOOLS_ON))
        run_id = await client.chat(conversation, "Say hello.")
        asked = await client.approval_request(run_id)
        await client.approve(run_id)
        outcome = await client.finished(run_id)

    assert asked["items"][0]["arguments"] == {"message": "hello"}
    [call] = outcome["tool_calls"]
    assert (call["result"]["result"], outcome["content"]) == ("Echo: hello", "done")


async def test_a_user_lists_the_prompts_of_a_server_and_gets_the_text_of_one(
    http: httpx.AsyncClient, everything: str
) -> None:
    """An assistant without the server has none of its prompts; faults of a request name their field."""
    async with offered(http, everything) as server:
        listed = (await http.get("/context/mcp-prompts")).json()["items"]
        without = await created(http, tools={"enabled": True, "mcp_servers": []})
        none = (await http.get("/context/mcp-prompts", params={"assistant_id": without})).json()["items"]
        [prompt] = [one for one in listed if (one["server"], one["name"]) == (server, "args-prompt")]

        async def get(**body: Any) -> httpx.Response:
            return await http.post(f"{SERVERS}/{server}/prompt", json=body)

        got = await get(name="args-prompt", arguments={"city": "Oslo"})
        missing = await get(name="args-prompt")
        unknown = await get(name="args-prompt", arguments={"city": "Oslo", "town": "x"})
        other = await get(name="nothing")
        refused = await get(name="resource-prompt", arguments={"resourceType": "x", "resourceId": "1"})

    assert ([one["name"] for one in prompt["arguments"]], none) == (["city", "state"], [])
    assert "weather in Oslo" in got.json()["text"]
    fields = [(one.status_code, one.json()["error"]["field"]) for one in (missing, unknown)]
    assert fields == [(400, "arguments.city"), (400, "arguments.town")]
    assert other.status_code == 404
    assert (refused.status_code, "Invalid resourceType" in refused.text) == (409, True)


@asynccontextmanager
async def waiting(
    client: Client, http: httpx.AsyncClient, play: Play, everything: str
) -> AsyncGenerator[tuple[str, str, dict[str, Any]]]:
    """Start a run whose call asks its user; yield the server, the run and the request."""
    async with offered(http, everything) as server:
        model = calling(play, server, "trigger-elicitation-request")
        conversation = await client.create(assistant=await created(http, model=model, **AUTO))
        run_id = await client.chat(conversation, "Ask me.")
        asked = await client.event("input.requested", run_id=run_id)
        yield server, run_id, asked["data"]


async def test_a_user_provides_what_a_server_requests_during_a_call(
    client: Client, http: httpx.AsyncClient, play: Play, everything: str
) -> None:
    """A value that does not fit the server's form is refused, and the request stays open."""
    async with waiting(client, http, play, everything) as (server, run_id, asked):
        path = f"/context/inputs/{asked['request_id']}"
        listed = (await http.get("/context/inputs")).json()["items"]
        status = (await http.get(f"/context/runs/{run_id}")).json()["status"]
        wrong = await http.post(path, json={"value": {"name": 5}})
        provided = await http.post(path, json={"value": {"name": "Ada", "integer": 7}})
        outcome = await client.finished(run_id)

    assert (asked["server"], asked["message"][:21], status) == (
        server,
        "Please provide inputs",
        "awaiting_input",
    )
    assert [one["server"] for one in listed if one["request_id"] == asked["request_id"]] == [server]
    assert (wrong.status_code, provided.json()["outcome"]) == (400, "provided")
    [call] = outcome["tool_calls"]
    assert "- Name: Ada" in call["result"]["result"]
    assert outcome["content"] == "done"
    assert (
        len(client.events(asked["request_id"].rpartition("-")[0].rpartition("-")[0], "tool_call.completed"))
        == 1
    )


async def test_a_user_declines_what_a_server_requests(
    client: Client, http: httpx.AsyncClient, play: Play, everything: str
) -> None:
    async with waiting(client, http, play, everything) as (_, run_id, asked):
        ack = await client.request("input.reply", request_id=asked["request_id"], decline=True)
        outcome = await client.finished(run_id)

    assert ack["outcome"] == "declined"
    [call] = outcome["tool_calls"]
    assert "declined" in call["result"]["result"]


async def asking(http: httpx.AsyncClient, play: Play, server: str) -> str:
    """Return a new conversation whose next run calls a tool that asks its user."""
    assistant = await created(http, model=calling(play, server, "trigger-elicitation-request"), **AUTO)
    made = await http.post("/context/conversations", json={"assistant": assistant})
    return str(made.json()["conversation_id"])


async def results(http: httpx.AsyncClient, conversation: str) -> list[str]:
    events = (await http.get(f"/context/conversations/{conversation}/events")).json()["items"]
    completed = [one["data"] for one in events if one["type"] == "tool_call.completed"]
    return [json.dumps(data) for data in completed]


@pytest.mark.parametrize("part", [Part(text="Decline"), Part(data=ParseDict({"decline": True}, Value()))])
async def test_a_client_over_a2a_declines_what_a_server_requests(
    system: System, http: httpx.AsyncClient, play: Play, everything: str, part: Part
) -> None:
    async with offered(http, everything) as server:
        conversation = await asking(http, play, server)
        client = await create_client(system.url, ClientConfig(httpx_client=http))
        asked = [update async for update in client.send_message(user_message("Ask me.", conversation))]
        reply = user_message("", conversation, asked[0].task.id)
        del reply.message.parts[:]
        reply.message.parts.append(part)
        done = [update async for update in client.send_message(reply)]

    states = last_state(asked), last_state(done)
    assert states == ("TASK_STATE_INPUT_REQUIRED", "TASK_STATE_COMPLETED")
    [result] = await results(http, conversation)
    assert "declined" in result


async def test_a_client_over_ag_ui_declines_by_cancelling_the_interrupt(
    http: httpx.AsyncClient, play: Play, everything: str
) -> None:
    async with offered(http, everything) as server:
        conversation = await asking(http, play, server)

        async def run(**more: Any) -> dict[str, Any]:
            """Return the last event."""
            body = {"threadId": conversation, "messages": [], "tools": [], "context": [], **more}
            lines = (await http.post("/agui", json=body)).text.splitlines()
            return json.loads([line for line in lines if line.startswith("data: ")][-1][6:])

        asked = await run(runId="r1", messages=[{"id": "u1", "role": "user", "content": "Ask me."}])
        [interrupt] = asked["outcome"]["interrupts"]
        resume = [{"interruptId": interrupt["id"], "status": "cancelled"}]
        done = await run(runId="r2", resume=resume)

    assert (interrupt["reason"], interrupt["metadata"]["banksman"]) == ("input_required", {"server": server})
    assert done["result"]["status"] == "completed"
    [result] = await results(http, conversation)
    assert "declined" in result


async def test_a_cancelled_run_ends_a_call_that_waits_for_its_user(
    client: Client, http: httpx.AsyncClient, play: Play, everything: str
) -> None:
    async with waiting(client, http, play, everything) as (_, run_id, asked):
        await client.request("run.cancel", run_id=run_id)
        outcome = await client.finished(run_id)
        late = await http.post(f"/context/inputs/{asked['request_id']}", json={"value": {"name": "Ada"}})

    assert (outcome["status"], late.status_code) == ("cancelled", 409)
    resolved = await client.event("input.resolved", run_id=run_id)
    assert resolved["data"]["outcome"] == "cancelled"


@pytest.mark.parametrize(("provider", "seen"), [("claude", 1), ("deepseek", 0)])
async def test_an_image_of_a_result_is_shown_to_models_that_see(
    client: Client, http: httpx.AsyncClient, serve: Serve, everything: str, provider: str, seen: int
) -> None:
    """Another model gets a note; the result names the file for both."""
    async with offered(http, everything) as server:

        def looking(prompt: Prompt) -> Turn:
            if prompt.images or prompt.user != "Show it.":
                return Turn(text=f"I see {len(prompt.images)}.")
            return Turn(calls=(Call(f"{server}__get-tiny-image", {}),))

        async with serve(provider, looking) as vendor:
            body = {"model": model_of(provider), **AUTO, "tools": {"enabled": True}}
            assistant = (await http.post("/context/assistants", json=body)).raise_for_status().json()
            outcome = await client.run(await client.create(assistant=assistant["id"]), "Show it.")

    assert (outcome["content"], vendor.refusals) == (f"I see {seen}.", [])
    [call] = outcome["tool_calls"]
    [path] = call["result"]["images"]
    assert f"kept as {path}]" in call["result"]["result"]
    assert ("[An image, which you cannot see.]" in json.dumps(vendor.bodies[-1])) == (not seen)
