"""The AsyncAPI document describes the replies of the NATS API; authors of clients have only the document."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from tests.gateway.conftest import Agent, Served
from tests.gateway.file_runner import serve_files
from tests.support.node import installed

from banksman.bus.connection import Bus
from banksman.contracts.ids import new_id

NODE = Path(__file__).with_name("asyncapi")
JsonObject = dict[str, Any]
SERVED_ELSEWHERE = {
    "workflow start",
    "workflow list",
    "workflow categories",
    "workflow read",
    "workflow parse",
    "workflow create",
    "workflow update",
    "workflow delete",
}
"""Requests that need the workflows service, which these tests do not run."""
IMPORT: JsonObject = {
    "events": [
        {
            "type": "run.started",
            "run_id": "r1",
            "data": {"message_id": "u1", "message": "Hi", "model": "demo:demo"},
        },
        {"type": "run.finished", "run_id": "r1", "data": {"status": "completed"}},
    ]
}
"""The smallest valid import."""
WEBHOOK: JsonObject = {"url": "https://example.org/hook", "events": ["run.finished"]}
SERVER: JsonObject = {"transport": {"type": "http", "url": "https://mcp.example.org"}}


@dataclass
class Documented:
    """A client that knows nothing but the document."""

    document: JsonObject
    bus: Bus
    tenant: str

    @property
    def requests(self) -> dict[str, JsonObject]:
        """The operations of the gateway, by title."""
        found = self.document["operations"].items()
        return {title: operation for title, operation in found if "x-error-codes" in operation}

    def subject(self, title: str, **parameters: str) -> str:
        address: str = self.document["channels"][title]["address"]
        return address.format(tenant=self.tenant, **parameters)

    async def request(self, title: str, body: JsonObject | None = None, **parameters: str) -> JsonObject:
        """Send a request, and check that the document describes its body and its reply."""
        if "unknwon" not in (body or {}):
            self.check(f"{title}:Request", body or {})
        data = await self.bus.request(self.subject(title, **parameters), json.dumps(body or {}).encode(), 10)
        reply: JsonObject = json.loads(data)
        kind = "Error" if reply.get("type") == "error" else "Reply"
        self.check(f"{title}:{kind}", reply)
        if kind == "Error":
            assert reply["code"] in self.requests[title]["x-error-codes"], (title, reply)
        return reply

    def check(self, message: str, body: JsonObject) -> None:
        payload = self.document["components"]["messages"][message]["payload"]
        components = {"schemas": self.document["components"]["schemas"]}
        jsonschema_rs.validate({**payload, "components": components}, body)


@pytest.fixture(scope="module")
def document() -> JsonObject:
    """The document, which the first test of the module fills: a gateway builds it in over a second."""
    return {}


@pytest.fixture
async def documented(document: JsonObject, gateway: Served, tenant: str) -> Documented:
    if not document:
        async with gateway.http as http:
            document |= (await http.get("/asyncapi.json")).json()
    return Documented(document, gateway.bus, tenant)


async def test_the_parser_of_asyncapi_accepts_the_document(documented: Documented, tmp_path: Path) -> None:
    folder = installed(NODE, tmp_path / "check")
    found = json.loads(
        await _run(folder, "node", "check.mjs", stdin=json.dumps(documented.document).encode())
    )
    assert found["problems"] == []
    assert set(found["operations"]) == set(documented.document["operations"])


def test_the_document_has_every_subject_that_clients_use(documented: Documented) -> None:
    """Interfaces, section 6; no address of the broker is in it."""
    addresses = {channel["address"] for channel in documented.document["channels"].values()}
    assert addresses >= {
        "api.{tenant}.conversation.create",
        "api.{tenant}.chat.send.{conversation_id}",
        "api.{tenant}.run.cancel.{conversation_id}",
        "api.{tenant}.approval.reply.{approval_id}",
        "api.{tenant}.workflow.start.{workflow}",
        "api.{tenant}.replay.{conversation_id}",
        "api.{tenant}.error",
        "live.{tenant}.{conversation_id}",
        "delta.{tenant}.{conversation_id}",
        "approval.request.{tenant}.{approval_id}",
        "tool.register",
        "workflow.register",
    }
    for title, channel in documented.document["channels"].items():
        assert set(channel["parameters"]) == {
            part[1:-1] for part in channel["address"].split(".") if "{" in part
        }
        if title in documented.requests:
            headers = documented.document["components"]["messages"][f"{title}:Request"]["headers"]
            assert set(headers["properties"]) == {"Banksman-Request-Id", "Banksman-Schema-Version"}
    assert "servers" not in documented.document


def test_documents_of_two_processes_have_the_same_order(documented: Documented) -> None:
    components = documented.document["components"]
    for part in ("channels", "operations"):
        assert list(documented.document[part]) == sorted(documented.document[part])
    for part in ("messages", "schemas"):
        assert list(components[part]) == sorted(components[part])


async def test_every_request_about_something_missing_gets_an_error_that_is_documented(
    documented: Documented,
) -> None:
    schedule = {"start": {"type": "prompt", "content": "hi"}, "cron": "0 0 1 1 *"}
    bodies: dict[str, JsonObject] = {
        "chat send": {"content": "hi"},
        "run cancel": {"run_id": "c1-0123456789ab"},
        "approval reply": {"all": "approve"},
        "input reply": {"value": 1},
        "conversation rename": {"title": "t"},
        "conversation share": {"people": []},
        "conversation import": IMPORT,
        "conversation search": {"q": "crane"},
        "assistant revision": {"revision": 1},
        "assistant changes": {"revision": 1, "since": 1},
        "assistant restore": {"revision": 1},
        "prompt create": {"content": "x"},
        "prompt update": {"content": "x"},
        "file read": {"path": "x"},
        "file write": {"path": "x", "data_base64": ""},
        "file delete": {"path": "x"},
        "process read": {"process_id": "p1"},
        "process stop": {"process_id": "p1"},
        "output read": {"tool_call_id": "k1"},
        "schedule create": schedule,
        "schedule update": schedule,
        "secret set": {"value": "a-secret-value"},
        "instructions set": {"text": "x"},
        "model_server set": {"base_url": "https://api.openai.com/v1"},
        "search_provider set": {"provider": "searxng", "url": "https://127.0.0.1:9/search"},
        "key create": {"user": "ann", "rights": ["admin"]},
        "webhook create": WEBHOOK,
        "webhook update": WEBHOOK,
        "step read": {"step_id": "s1"},
        "mcp create": SERVER | {"id": "issues"},
        "mcp update": SERVER,
        "mcp approve": {"digest": "0" * 64},
        "mcp prompt": {"name": "summary"},
        "file unpack": {"path": "a.zip"},
        "mcp sign_in": {"gateway_url": "http://127.0.0.1:8080"},
        "mcp_account sign_in": {"gateway_url": "http://127.0.0.1:8080"},
        "mcp_account finish": {"url": "http://127.0.0.1:8080/context/mcp-sign-in?state=s"},
        "mcp finish": {"url": "http://127.0.0.1:8080/context/mcp-sign-in?state=s"},
    }
    ids = {"run_id": "c1-0123456789ab", "approval_id": "c1-r-a", "request_id": "c1-r-a"}
    for title, operation in documented.requests.items():
        if title in SERVED_ELSEWHERE:
            continue
        channel = documented.document["channels"][title]
        misses = "not_found" in operation["x-error-codes"]
        # A request that needs no existing object may create one.
        other = "c1" if misses else "c2"
        named = {name: ids.get(name, other) for name in channel["parameters"] if name != "tenant"}
        reply = await documented.request(title, bodies.get(title), **named)
        if misses and named:
            assert reply["code"] == "not_found", (title, reply)
        elif title == "key create":
            # The first key of a gateway without keys concerns all tenants.
            assert reply["code"] == "forbidden"
        else:
            assert reply.get("type") != "error", (title, reply)
        wrong = await documented.request(title, {"unknwon": 1}, **named)
        assert wrong.get("code", "bad_request") in ("bad_request", "not_found"), (title, wrong)


async def test_conversations_runs_and_pending_approvals_are_read_and_changed(
    documented: Documented, agent: Agent
) -> None:
    """NATS offers the same as HTTP: list, read, rename, search, delete; runs; open approval requests."""
    made = await documented.request("conversation create", {"title": "Cranes", "id": new_id("q")})
    conversation = made["conversation_id"]
    sent = await documented.request(
        "chat send", {"content": "list", "id": new_id("q")}, conversation_id=conversation
    )
    start = await agent.started(conversation)
    await agent.begin(start)
    request = await agent.request_approval(start)
    pending = await documented.request("approval list")
    parked = await documented.request("run read", run_id=sent["run_id"])
    decided = await documented.request(
        "approval reply", {"all": "approve"}, approval_id=pending["items"][0]["approval_id"]
    )
    await agent.finish(start, "Done.")
    runs = await documented.request("run list", conversation_id=conversation)
    assert (await documented.request("input list"))["items"] == []
    ended = await documented.request("run read", {"wait_s": 5}, run_id=sent["run_id"])
    calls = await documented.request("run calls", run_id=sent["run_id"])
    steps = await documented.request("step list", {"limit": 2}, run_id=sent["run_id"])
    step = await documented.request("step read", {"step_id": request.approval_id}, run_id=sent["run_id"])
    hits = await documented.request("conversation search", {"q": "done"})
    titled = await documented.request("conversation title", conversation_id=conversation)
    compacting = await documented.request("conversation compact", conversation_id=conversation)
    imported = await documented.request("conversation import", IMPORT)
    await documented.request("conversation rename", {"title": "Lifts"}, conversation_id=conversation)
    found = await documented.request("conversation list", {"q": "lift"})
    read = await documented.request("conversation read", conversation_id=conversation)
    deleted = await documented.request("conversation delete", conversation_id=conversation)
    left = await documented.request("conversation list")

    assert [one["approval_id"] for one in pending["items"]] == [request.approval_id]
    assert (parked["status"], decided["outcome"]) == ("awaiting_approval", "approved")
    assert [run["run_id"] for run in runs["items"]] == [sent["run_id"]]
    assert (compacting["status"], compacting["conversation_id"]) == ("queued", conversation)
    assert (titled["title"], imported["items"][0]["title"]) == ("Cranes", "Hi")
    assert (ended["status"], ended["content"], calls["total"]) == ("completed", "Done.", 0)
    assert (len(steps["items"]), steps["next"]) == (2, 2)
    assert (step["step"]["kind"], step["result"], bool(step["request"]["items"])) == ("approval", None, True)
    assert [one["snippet"] for one in hits["items"]] == ["Done."]
    assert [one["conversation_id"] for one in found["items"]] == [conversation]
    assert (read["title"], read["head_seq"] > 5, deleted) == ("Lifts", True, {"id": conversation})
    assert [one["title"] for one in left["items"]] == ["Hi"]


async def test_revisions_of_an_assistant_are_listed_read_compared_and_restored(
    documented: Documented,
) -> None:
    first = await documented.request("assistant create", {"id": "cranes", "name": "Cranes"})
    second = await documented.request("assistant update", {"name": "Lifts"}, assistant_id="cranes")
    listed = await documented.request("assistant revisions", assistant_id="cranes")
    older = {"revision": first["revision"]}
    read = await documented.request("assistant revision", older, assistant_id="cranes")
    both = {"revision": second["revision"], "since": first["revision"]}
    changes = await documented.request("assistant changes", both, assistant_id="cranes")
    restored = await documented.request("assistant restore", older, assistant_id="cranes")
    preview = await documented.request("assistant preview", {"system_prompt": "Lift."})
    assert [one["current"] for one in listed["items"]] == [True, False]
    assert (read, restored["name"]) == (first, "Cranes")
    assert preview["content"].startswith("Lift.")
    assert changes["items"] == [{"field": "name", "before": "Cranes", "after": "Lifts"}]


async def test_prompts_are_created_paged_enhanced_and_deleted(documented: Documented) -> None:
    body: JsonObject = {"id": "mine", "content": "Greet {{user}}."}
    made = await documented.request("prompt create", body)
    taken = await documented.request("prompt create", body)
    changed = await documented.request("prompt update", {"content": "Greet {{user}}!"}, prompt_id="mine")
    read = await documented.request("prompt read", prompt_id="mine")
    enhanced = await documented.request("prompt enhance", {"variables": {"user": "Ada"}}, prompt_id="mine")
    first = await documented.request("prompt list", {"limit": 1})
    second = await documented.request("prompt list", {"limit": 1, "after": first["next"]})
    deleted = await documented.request("prompt delete", prompt_id="mine")
    assert (made["content"], taken["code"]) == ("Greet {{user}}.", "conflict")
    assert changed["revision"] > made["revision"] and read == changed
    assert (enhanced["base"], "bash" in enhanced["tools"]) == ("Greet Ada!", True)
    assert [page["items"][0]["id"] for page in (first, second)] == ["default", "mine"]
    assert (second["next"], deleted) == (None, {"id": "mine"})


async def test_webhooks_are_administered_and_a_gateway_without_a_provider_lists_none(
    documented: Documented,
) -> None:
    made = await documented.request("webhook create", WEBHOOK)
    named = {"webhook_id": made["id"]}
    changed = await documented.request("webhook update", WEBHOOK | {"description": "Cranes"}, **named)
    queued = await documented.request("webhook test", **named)
    deliveries = await documented.request("webhook deliveries", **named)
    read = await documented.request("webhook read", **named)
    deleted = await documented.request("webhook delete", **named)
    left = await documented.request("webhook list")
    providers = await documented.request("identity_provider list")
    assert made["secret"].startswith("whsec_")
    assert read == changed and read.keys().isdisjoint({"secret", "tenant", "after_seq"})
    assert [one["id"] for one in deliveries["items"]] == [queued["id"]]
    assert (deleted, left["items"], providers["items"]) == ({"id": made["id"]}, [], [])


async def test_files_are_written_in_slices_listed_read_and_deleted(documented: Documented) -> None:
    files: dict[str, bytes] = {"b.txt": b"b"}
    await serve_files(documented.bus, files)
    conversation = (await documented.request("conversation create"))["conversation_id"]
    here = {"conversation_id": conversation}
    one: JsonObject = {"path": "a.txt", "upload": "u1", "data_base64": "b25l", "last": False}
    await documented.request("file write", one, **here)
    two = {**one, "offset": 3, "data_base64": "dHdv", "last": True}
    stored = await documented.request("file write", two, **here)
    page = await documented.request("file list", {"limit": 1}, **here)
    rest = await documented.request("file list", {"limit": 1, "after": page["next"]}, **here)
    read = await documented.request("file read", {"path": "a.txt", "offset": 3}, **here)
    compared = await documented.request("file diff", {"since": "r1"}, **here)
    running = await documented.request("process list", **here)
    deleted = await documented.request("file delete", {"path": "a.txt"}, **here)
    wrong = await documented.request("file write", {"path": "c", "data_base64": "=?"}, **here)
    assert (stored, files) == ({"path": "a.txt", "size": 6}, {"b.txt": b"b"})
    assert [entry["path"] for entry in (*page["items"], *rest["items"])] == ["a.txt", "b.txt"]
    assert (read["data_base64"], read["more"], rest["next"]) == ("dHdv", False, None)
    assert (compared["patch"], [one["id"] for one in running["items"]]) == ("the patch\n", ["p1"])
    assert deleted == {"id": "a.txt"}
    assert (wrong["details"]["field"], wrong["message"]) == (
        "data_base64",
        "data_base64: expected base64, got '=?'",
    )


async def test_a_reply_too_large_for_a_message_is_an_error_with_this_reason(documented: Documented) -> None:
    for number in range(5):
        body: JsonObject = {"id": f"p{number}", "content": "x" * 250_000}
        assert (await documented.request("prompt create", body))["id"] == f"p{number}"
    all_of_them = await documented.request("prompt list")
    some = await documented.request("prompt list", {"limit": 3})
    assert (all_of_them["code"], "`limit`" in all_of_them["message"]) == ("too_large", True)
    assert len(some["items"]) == 3


async def _run(folder: Path, *command: str, stdin: bytes | None = None) -> bytes:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate(stdin)
    assert process.returncode == 0, command
    return output
