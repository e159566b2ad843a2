"""Runs with a response schema: the final reply fits it, and every interface returns it as an object."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
from a2a.client import ClientConfig, create_client
from google.protobuf.json_format import MessageToDict
from mcp.client import Client as McpClient
from mcp.client.streamable_http import streamable_http_client
from standardwebhooks import Webhook

from banksman import sdk
from banksman.contracts.assistants import RunOverrides
from banksman.contracts.ids import new_id
from banksman.contracts.model_options import ModelOptions
from banksman.sdk import WorkflowContext, workflow
from tests.scenarios.conftest import Play, model_requests
from tests.scenarios.test_a2a import user_message
from tests.scenarios.test_escalation import Received, received
from tests.scenarios.test_workflow_servers import served
from tests.support.client import Client
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import ScriptedModel, System
from tests.support.timeouts import WAIT_TIMEOUT_S

__all__ = ["received"]

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "people": {"type": "integer", "minimum": 1}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
BONN = {"city": "Bonn", "people": 330_000}
REPLY = ScriptedReply(text=json.dumps(BONN))


async def assistant_of(http: httpx.AsyncClient, model: str, **fields: Any) -> str:
    """Create an assistant whose final replies fit the schema; return its id."""
    body = {"model": model, "options": {"response_schema": SCHEMA}, **fields}
    response = await http.post("/context/assistants", json=body)
    assert response.status_code == 201, response.text
    return str(response.json()["id"])


async def test_final_reply_is_an_object_on_the_websocket_and_over_http(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel
) -> None:
    name = play(REPLY)
    conversation = await client.create(assistant=await assistant_of(http, name))

    run_id = await client.chat(conversation, "Where?")
    outcome = await client.finished(run_id)
    read = (await http.get(f"/context/runs/{run_id}")).json()

    assert outcome["structured_output"] == read["structured_output"] == BONN
    assert json.loads(outcome["content"]) == BONN
    [request] = model_requests(model, name)
    assert request["response_format"]["json_schema"]["schema"] == SCHEMA


@pytest.mark.parametrize("protocol", ["native", "json_text"])
async def test_reply_that_does_not_fit_is_corrected_by_the_model(
    client: Client, http: httpx.AsyncClient, play: Play, model: ScriptedModel, protocol: str
) -> None:
    fenced = f"```json\n{json.dumps(BONN)}\n```"
    name = play(
        ScriptedReply(text="It is Bonn."),
        ScriptedReply(text='{"city": "Bonn", "people": 0}'),
        ScriptedReply(text="[]"),
        ScriptedReply(text=fenced),
    )
    tools = {"enabled": True, "tool_protocol": protocol}
    conversation = await client.create(assistant=await assistant_of(http, name, tools=tools))

    outcome = await client.run(conversation, "Where?")

    assert outcome["structured_output"] == json.loads(outcome["content"]) == BONN
    first, second, third, fourth = model_requests(model, name)
    assert "response_format" not in first, "with it, servers would exclude calls of tools"
    assert json.dumps(SCHEMA) in first["messages"][0]["content"]
    assert "must be valid JSON" in second["messages"][-1]["content"]
    assert "people must be at least 1" in third["messages"][-1]["content"]
    assert "the last attempt" in fourth["messages"][-1]["content"]


async def test_reply_that_does_not_fit_after_three_corrections_ends_the_run(
    client: Client, http: httpx.AsyncClient, play: Play
) -> None:
    name = play(*[ScriptedReply(text="It is Bonn.")] * 4)
    conversation = await client.create(assistant=await assistant_of(http, name))

    outcome = await client.run(conversation, "Where?")

    assert (outcome["status"], outcome["error"]["code"]) == ("failed", "malformed_calls")
    assert "do not fit the response schema" in outcome["content"]
    assert "structured_output" not in outcome


async def test_call_that_would_end_the_run_is_followed_by_the_object(
    client: Client, http: httpx.AsyncClient, play: Play
) -> None:
    call = ScriptedCall(name="read_file", arguments={"path": "missing.txt", "terminate": True})
    name = play(ScriptedReply(tool_calls=(call,)), REPLY)
    assistant = await assistant_of(http, name, tools={"enabled": True})
    conversation = await client.create(assistant=assistant)

    outcome = await client.run(conversation, "Read it.")

    assert outcome["structured_output"] == BONN
    assert [entry["tool"] for entry in outcome["tool_calls"]] == ["read_file"]


async def test_one_message_may_have_its_own_schema_over_nats(nats: sdk.Client, play: Play) -> None:
    conversation = await nats.create_conversation(model=play(REPLY, ScriptedReply(text="Bonn.")))
    overrides = RunOverrides(options=ModelOptions(response_schema=SCHEMA))

    with_schema = await nats.outcome(await nats.send(conversation, "Where?", overrides=overrides))
    without = await nats.outcome(await nats.send(conversation, "Where?"))

    assert with_schema.structured_output == BONN
    assert (without.structured_output, without.content) == (None, "Bonn.")


async def test_openais_client_parses_the_object(system: System, play: Play) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA, "strict": True}}
    async with openai.AsyncOpenAI(base_url=f"{system.url}/context", api_key="local") as vendor:
        asked: Any = [{"role": "user", "content": "Where?"}]
        reply = await vendor.chat.completions.create(model=play(REPLY), messages=asked, response_format=form)

    extension: Any = (reply.model_extra or {})["banksman"]
    assert json.loads(reply.choices[0].message.content or "") == extension["structured_output"] == BONN


async def test_anthropics_client_receives_the_object(system: System, play: Play) -> None:
    config: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
    async with anthropic.AsyncAnthropic(base_url=f"{system.url}/context/chat", api_key="local") as vendor:
        asked: Any = [{"role": "user", "content": "Where?"}]
        reply = await vendor.messages.create(
            model=play(REPLY), messages=asked, max_tokens=100, output_config=config
        )

    assert json.loads(reply.content[0].text) == BONN  # type: ignore[union-attr]
    assert (reply.model_extra or {})["banksman"]["structured_output"] == BONN


async def test_a2a_has_an_artifact_with_the_object(
    system: System, http: httpx.AsyncClient, client: Client, play: Play
) -> None:
    conversation = await client.create(assistant=await assistant_of(http, play(REPLY)))
    sending = await create_client(system.url, ClientConfig(httpx_client=http))

    updates = [MessageToDict(one) async for one in sending.send_message(user_message("Where?", conversation))]

    artifacts = [one["artifactUpdate"]["artifact"] for one in updates if "artifactUpdate" in one]
    assert artifacts[-1] == {"artifactId": "structured_output", "parts": [{"data": BONN}]}
    task = {"jsonrpc": "2.0", "id": 1, "method": "GetTask", "params": {"id": updates[0]["task"]["id"]}}
    read = (await http.post("/a2a", json=task, headers={"a2a-version": "1.0"})).json()["result"]
    assert read["artifacts"][-1]["parts"] == [{"data": BONN}]


async def test_agui_has_the_object_in_its_last_event(
    client: Client, http: httpx.AsyncClient, play: Play
) -> None:
    conversation = await client.create(assistant=await assistant_of(http, play(REPLY)))
    message = {"id": new_id("u"), "role": "user", "content": "Where?"}
    empty: dict[str, Any] = {"tools": [], "context": [], "state": {}, "forwardedProps": {}}
    body = {"threadId": conversation, "runId": new_id("r"), "messages": [message], **empty}

    async with http.stream("POST", "/agui", json=body) as response:
        events = [event async for event in _data_of(response)]

    assert (events[-1]["type"], events[-1]["result"]["structured_output"]) == ("RUN_FINISHED", BONN)


async def _data_of(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


async def test_mcp_returns_the_object(system: System, http: httpx.AsyncClient, play: Play) -> None:
    assistant = await assistant_of(http, play(REPLY))
    async with httpx2.AsyncClient(timeout=2 * WAIT_TIMEOUT_S) as connection:
        transport = streamable_http_client(f"{system.url}/mcp", http_client=connection)
        async with McpClient(transport, cache=None) as mcp:
            arguments = {"message": "Where?", "assistant": assistant, "wait_s": 45}
            result = await mcp.call_tool("start_run", arguments)

    assert result.structured_content is not None and result.structured_content["structured_output"] == BONN


async def test_step_of_a_workflow_has_the_object(
    system: System, http: httpx.AsyncClient, client: Client, play: Play
) -> None:
    @workflow(name="survey", title="Survey")
    async def survey(context: WorkflowContext) -> str:
        """Let a model count."""
        options = ModelOptions(response_schema=SCHEMA)
        result = await context.run("Count.", step="count", tools=(), options=options)
        return f"{result.content['structured_output']['people']} people"  # type: ignore[index, call-overload]

    conversation = await client.create(play(REPLY))
    async with served(system, survey, name="survey"):
        response = await http.post(
            "/workflows/survey/runs", json={"conversation_id": conversation}, params={"wait_s": 30}
        )

    assert (response.json()["status"], response.json()["content"]) == ("completed", "330000 people")


async def test_command_prints_the_object(system: System, http: httpx.AsyncClient, play: Play) -> None:
    assistant = await assistant_of(http, play(REPLY))
    command = [sys.executable, "-m", "banksman.cli", "run", "Where?", "--assistant", assistant, "--json"]

    process = await asyncio.create_subprocess_exec(
        *command, "--url", system.url, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(2 * WAIT_TIMEOUT_S):
        output, _ = await process.communicate()

    frames = [json.loads(line) for line in output.splitlines()]
    assert frames[-1]["data"]["structured_output"] == BONN


async def test_webhook_receives_the_object(
    http: httpx.AsyncClient,
    client: Client,
    play: Play,
    webhook_port: int,
    received: asyncio.Queue[Received],
) -> None:
    conversation = await client.create(assistant=await assistant_of(http, play(REPLY)))
    body = {"url": f"http://127.0.0.1:{webhook_port}/hook", "events": ["run.finished"]}
    webhook = (await http.post("/context/webhooks", json=body)).json()
    try:
        run_id = await client.chat(conversation, "Where?")
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while True:
                headers, text = await received.get()
                event = Webhook(webhook["secret"]).verify(text, headers)
                if event["data"]["run_id"] == run_id:
                    break
    finally:
        await http.delete(f"/context/webhooks/{webhook['id']}")

    assert event["data"]["structured_output"] == BONN


@pytest.mark.parametrize(
    ("schema", "field"),
    [
        ({"type": "string"}, "options.response_schema"),
        (
            {"type": "object", "properties": {"a": {"type": "text"}}},
            "options.response_schema.properties.a.type",
        ),
        ({"type": "object", "$ref": "https://example.com/schema"}, "options.response_schema.$ref"),
    ],
)
async def test_schema_that_cannot_be_applied_is_refused(
    http: httpx.AsyncClient, schema: dict[str, Any], field: str
) -> None:
    refused = await http.post("/context/assistants", json={"options": {"response_schema": schema}})
    error = refused.json()["error"]
    assert (refused.status_code, error["field"]) == (400, field)

    body = {"content": "hi", "overrides": {"options": {"response_schema": schema}}}
    started = await http.post("/v1/chat", json=body)
    assert started.status_code == 400 and started.json()["error"]["field"].endswith(field)
