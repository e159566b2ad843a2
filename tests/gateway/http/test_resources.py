from __future__ import annotations

import json

import httpx
import pytest
from tests.gateway.conftest import Agent, Served, Socket
from tests.gateway.file_runner import serve_files
from tests.gateway.played_workflows import play_workflows
from websockets.exceptions import InvalidStatus

from banksman.bus.jetstream import last_message
from banksman.bus.names import OUTPUTS, WORKFLOWS
from banksman.bus.secrets import sealed
from banksman.bus.storage.objects import Objects
from banksman.contracts import subjects
from banksman.contracts.assistants import Assistant, AssistantBody, RunSettings
from banksman.contracts.events import ToolCallCompleted
from banksman.contracts.frames import REQUEST_ID
from banksman.contracts.ids import new_id
from banksman.contracts.tools import ToolResult


async def test_assistants_are_stored_with_a_revision(gateway: Served) -> None:
    async with gateway.http as http:
        listed = (await http.get("/context/assistants")).json()["items"]
        made = await http.post("/context/assistants", json={"id": "plain", "model": "demo:demo"})
        taken = await http.post("/context/assistants", json={"id": "plain"})
        changed = await http.put("/context/assistants/plain", json={"tools": {"enabled": True}})
        read = (await http.get("/context/assistants/plain")).json()
        wrong = await http.post("/context/assistants", json={"model": "no-provider"})
        gone = await http.delete("/context/assistants/plain")
        missing = await http.get("/context/assistants/plain")
    assert [(one["id"], one["tools"]["enabled"]) for one in listed] == [("default", True)]
    assert (made.status_code, made.json()["tools"]["enabled"], taken.status_code) == (201, False, 409)
    assert changed.json()["revision"] > made.json()["revision"]
    assert (read["tools"]["enabled"], read["model"]) == (True, None)
    assert (wrong.status_code, wrong.json()["error"]["field"]) == (400, "model")
    assert (gone.status_code, missing.status_code) == (204, 404)


def test_assistant_body_and_run_settings_have_every_field_of_an_assistant() -> None:
    settings = set(Assistant.model_fields) - {"id", "revision"}
    kept_apart = {"name", "files"}
    added = {
        *("assistant_id", "assistant_revision", "tool_protocol"),
        *("workspace", "workflow", "branch", "traceparent", "user", "account", "compact", "instructions"),
    }
    assert set(AssistantBody.model_fields) == settings
    assert set(RunSettings.model_fields) - added == settings - kept_apart


async def test_settings_of_an_assistant_reach_its_runs(gateway: Served, agent: Agent) -> None:
    assistant = {
        "id": "tight",
        "model": "anthropic:some-model",
        "fallback_models": ["demo", "openai:other"],
        "options": {"max_tokens": 99},
        "tools": {"enabled": True, "max_iterations": 7, "tool_protocol": "json_text"},
        "variables": {"service": "docs", "tone": "dry"},
    }
    async with gateway.http as http:
        await http.post("/context/assistants", json=assistant)
        body = {"assistant": "tight", "settings": {"max_iterations": 5}}
        conversation = (await http.post("/context/conversations", json=body)).json()["conversation_id"]
        run = {"content": "hi", "overrides": {"model": "demo"}, "variables": {"tone": "warm"}}
        await http.post(f"/context/conversations/{conversation}/runs", json=run)
    settings = (await agent.started(conversation)).settings
    assert (settings.assistant_id, settings.assistant_revision > 0) == ("tight", True)
    assert (settings.model, settings.options.max_tokens) == ("demo:demo", 99)
    assert settings.fallback_models == ("openai:other",)
    assert (settings.tools.max_iterations, settings.tool_protocol) == (5, "json_text")
    assert settings.variables == {"service": "docs", "tone": "warm"}


async def test_an_enhanced_prompt_contains_base_tools_and_diagram_instructions(gateway: Served) -> None:
    """R24, R25"""
    async with gateway.http as http:
        made = await http.post("/v1/system-prompts", json={"id": "mine", "content": "Serve {{service}}."})
        plain = (await http.get("/v1/system-prompts/mine")).json()
        path = "/v1/system-prompts/mine/enhanced"
        written = {"variables": '{"service": "docs"}', "protocol": "json_text"}
        enhanced = (await http.get(path, params=written)).json()
        native = (await http.get(path, params={"assistant": "default"})).json()
        small = (await http.get(path, params={"budget_tokens": 300})).json()
        default = (await http.get("/v1/system-prompts/default")).json()
    assert (made.status_code, plain["content"]) == (201, "Serve {{service}}.")
    assert enhanced["content"].startswith("Serve docs.")
    assert {"bash", "read_file", "write_file", "web_fetch"} <= set(enhanced["tools"])
    assert '"terminate"' in enhanced["content"] and "mermaid" in enhanced["content"]
    assert native["protocol"] == "native" and "ONLY one JSON object" not in native["content"]
    assert small["dropped_tools"]
    assert default["content"]


async def test_files_are_uploaded_listed_downloaded_and_deleted(gateway: Served) -> None:
    files: dict[str, bytes] = {}
    await serve_files(gateway.bus, files)
    data = bytes(range(256)) * 5000
    async with gateway.http as http:
        conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        path = f"/context/conversations/{conversation}/files"
        put = await http.put(f"{path}/notes/a%20b.bin", content=data)
        listed = (await http.get(path)).json()["items"]
        read = await http.get(f"{path}/notes/a%20b.bin")
        deleted = await http.delete(f"{path}/notes/a%20b.bin")
        missing = await http.get(f"{path}/notes/a%20b.bin")
    assert put.status_code == 201
    assert [(one["path"], one["size"]) for one in listed] == [("notes/a b.bin", len(data))]
    assert read.content == data
    assert read.headers["content-disposition"].startswith("attachment")
    assert (deleted.status_code, missing.status_code) == (204, 404)


async def test_the_changes_of_a_workspace_are_shown_and_downloaded_as_a_patch(gateway: Served) -> None:
    await serve_files(gateway.bus, {})
    async with gateway.http as http:
        conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        shown = await http.get(f"/context/conversations/{conversation}/diff", params={"since": "r1"})
        patch = await http.get(f"/context/conversations/{conversation}/patch")
    assert shown.json() == {"files": [], "more": 0, "patch": "the patch\n"}
    assert patch.content == b"the patch\n"
    assert ".patch" in patch.headers["content-disposition"]


@pytest.mark.parametrize("key", [None, "ab" * 32])
async def test_the_complete_output_of_a_call_is_downloaded(
    gateway: Served, agent: Agent, key: str | None
) -> None:
    """Encrypted, or stored in the clear by a runner of an earlier version. No client gets the key."""
    async with gateway.http as http:
        conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        await http.post(f"/context/conversations/{conversation}/runs", json={"content": "list"})
        start = await agent.started(conversation)
        call = (await agent.request_approval(start)).items[0].tool_call_id
        name = f"{agent.tenant}/{conversation}/{call}-1"
        whole = b"all of it"
        await Objects(gateway.bus, OUTPUTS).put(name, sealed(whole, key, name) if key else whole)
        result = ToolResult(tool_call_id=call, content={}, truncated=True, output_ref=name, output_key=key)
        await agent.commit(conversation, start.run_id, ToolCallCompleted(result=result))
        output = await http.get(f"/context/runs/{start.run_id}/tool-calls/{call}/output")
        other = await http.get(f"/context/runs/{start.run_id}/tool-calls/k0/output")
        events = await http.get(f"/context/conversations/{conversation}/events")
    assert (output.content, other.status_code) == (b"all of it", 404)
    assert name in events.text and "output_key" not in events.text


async def test_a_workflow_is_chosen_and_started(gateway: Served, tenant: str) -> None:
    """R112"""
    definition = await play_workflows(gateway.bus)
    async with gateway.http as http, gateway.socket() as socket:
        grouped = (await http.get("/workflows/categories")).json()["items"]
        read = (await http.get(f"/workflows/{definition.name}")).json()
        started = await http.post(f"/workflows/{definition.name}/runs", json={"parameters": {"name": "x"}})
        ack = await socket.request("workflow.start", workflow=definition.name, parameters={"name": "x"})
        head = await socket.request("subscribe", conversation_id=ack["conversation_id"], after_seq=0)
    subject = subjects.workflow_run(subjects.SERVED, tenant, ack["conversation_id"])
    message = await last_message(gateway.bus, WORKFLOWS, subject)
    assert [one["workflows"][0]["name"] for one in grouped] == [definition.name]
    assert {"name", "title", "description", "order", "icon", "workflows"} <= set(grouped[0])
    assert (read["title"], started.status_code) == ("Create project", 202)
    assert message is not None
    assert json.loads(message.data)["parameters"] == {"name": "x", "kind": "default"}
    assert head["type"] == "subscribed"


async def test_workflows_without_their_service_are_unavailable(gateway: Served) -> None:
    async with gateway.http as http:
        response = await http.get("/workflows")
    assert (response.status_code, response.json()["error"]["code"]) == (503, "unavailable")
    assert int(response.headers["retry-after"]) >= 1


async def test_a_ticket_opens_one_websocket(guarded: Served) -> None:
    async with guarded.http as http:
        ticket = (await http.post("/v1/ws-ticket")).json()["ticket"]
        refused = await http.post("/v1/ws-ticket", headers={"authorization": ""})
    async with guarded.raw(path=f"/ws?ticket={ticket}") as connection:
        assert (await Socket(connection).request("hello"))["user"] == "alice"
    with pytest.raises(InvalidStatus) as used:
        async with guarded.raw(path=f"/ws?ticket={ticket}"):
            pass
    assert (refused.status_code, used.value.response.status_code) == (401, 401)


@pytest.mark.parametrize("path", ["/docs", "/asyncapi"])
async def test_api_documents_load_nothing_from_another_host(gateway: Served, path: str) -> None:
    async with gateway.http as http:
        page = await http.get(path)
    assert page.status_code == 200
    assert "http://" not in page.text and "https://" not in page.text
    assert "script" not in page.headers["content-security-policy"]


async def test_api_documents_describe_http_nats_and_websocket(gateway: Served) -> None:
    async with gateway.http as http:
        openapi = (await http.get("/openapi.json")).json()
        asyncapi = (await http.get("/asyncapi.json")).json()
        frames = (await http.get("/v1/schemas/ws.json")).json()
    body = openapi["paths"]["/context/conversations/{conversation_id}/runs"]["post"]["requestBody"]
    assert body["content"]["application/json"]["schema"]["$ref"].endswith("/NewRun")
    assert "content" in openapi["components"]["schemas"]["NewRun"]["properties"]
    assert "chat send" in asyncapi["channels"]
    assert "ChatSend" in frames["client"]["$defs"] and "crash_loop" in frames["error_codes"]


async def test_tools_are_listed_with_their_categories(gateway: Served) -> None:
    """R27, R41. Other tests may register tools too."""
    async with gateway.http as http:
        listed = (await http.get("/context/tools")).json()
    categories = {category["name"]: category for category in listed["categories"]}
    assert {tool["category"] for tool in listed["items"]} == categories.keys()
    assert categories.keys() >= {"workspace", "web"}
    assert categories["workspace"] == {
        "name": "workspace",
        "title": "Workspace",
        "description": "Read and write files, and run commands.",
        "order": 5,
        "icon": "terminal",
    }


async def test_a_deleted_system_prompt_is_missing(gateway: Served) -> None:
    async with gateway.http as http:
        made = (await http.post("/v1/system-prompts", json={"content": "Be brief."})).json()
        path = f"/v1/system-prompts/{made['id']}"
        read = await http.get(path)
        deleted = await http.delete(path)
        missing = [await http.get(path), await http.delete(path)]
        listed = (await http.get("/v1/system-prompts")).json()["items"]
        assistant = await http.post("/context/conversations", json={"system_prompt_id": made["id"]})
    assert (read.json()["content"], deleted.status_code) == ("Be brief.", 204)
    assert [response.status_code for response in missing] == [404, 404]
    assert made["id"] not in {one["id"] for one in listed} and assistant.status_code == 404


async def test_the_root_responds_to_clients_that_look_for_a_server(guarded: Served) -> None:
    """Interfaces, section 2: `HEAD /` and `GET /` return 200, without a key."""
    async with httpx.AsyncClient(base_url=guarded.url) as http:
        found = [await http.head("/"), await http.get("/")]
    assert [response.status_code for response in found] == [200, 200]


async def test_a_repeated_idempotency_key_creates_a_system_prompt_once(gateway: Served) -> None:
    """Over HTTP and over NATS; another body with the same key is a conflict."""
    key, body = new_id("key"), {"content": "Be brief."}
    subject = subjects.api(gateway.tenant, "prompt", "create")
    async with gateway.http as http:
        made = [
            await http.post("/v1/system-prompts", json=body, headers={"Idempotency-Key": key})
            for _ in range(2)
        ]
        other = await http.post("/v1/system-prompts", json={"content": "x"}, headers={"Idempotency-Key": key})
        sent = [
            json.loads(await gateway.bus.request(subject, json.dumps(body).encode(), 10, {REQUEST_ID: key}))
            for _ in range(2)
        ]
        listed = (await http.get("/v1/system-prompts")).json()["items"]
    assert made[0].json() == made[1].json() and sent[0] == sent[1]
    assert (other.status_code, len(listed)) == (409, 3)
