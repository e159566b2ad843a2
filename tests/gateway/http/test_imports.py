"""Import of files of conversations: our own exports, and those of ChatGPT, Claude and Open WebUI."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from typing import Any

import httpx
from tests.gateway.conftest import Agent, Served

from banksman.bus.connection import Bus
from banksman.bus.jetstream import last_message
from banksman.bus.names import RUNS
from banksman.contracts import subjects
from banksman.contracts.events import Event, MessageCompleted, ReasoningCompleted, RunFinished, RunStarted
from banksman.contracts.work import ImportEvents

PATH = "/context/conversations/import"
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


async def _stored(bus: Bus, tenant: str, conversation_id: str) -> list[Event]:
    """Return the events that agents will write."""
    signal = await last_message(bus, RUNS, subjects.run_signal(tenant, conversation_id))
    assert signal is not None
    return list(ImportEvents.model_validate_json(signal.data).events)


async def _items(http: httpx.AsyncClient, content: Any, **options: Any) -> list[dict[str, Any]]:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    reply = await http.post(PATH, content=data, **options)
    assert reply.status_code == 201, reply.text
    return reply.json()["items"]


def _written(events: list[Event]) -> list[tuple[str, Any]]:
    """Return who wrote what: messages, thoughts, calls with arguments, and results."""
    written = list[tuple[str, Any]]()
    for event in events:
        match event.data:
            case RunStarted(message=message):
                written.append(("user", message))
            case MessageCompleted(content=content) if content:
                written.append(("assistant", content))
            case ReasoningCompleted(text=text):
                written.append(("thought", text))
            case _ if event.data.type == "tool_call.requested":
                call: Any = event.data
                written.append((call.call.name, call.call.arguments))
            case _ if event.data.type == "tool_call.completed":
                done: Any = event.data
                written.append(("result", done.result.content))
            case _:
                pass
    return written


def _node(parent: str | None, role: str, content: dict[str, Any], **message: Any) -> dict[str, Any]:
    author = {"role": role, "name": message.pop("name", None), "metadata": {}}
    fields = {"recipient": "all", "metadata": {}, "create_time": 1_700_000_000.5, **message}
    return {"parent": parent, "children": [], "message": {"author": author, "content": content, **fields}}


def _text(text: str) -> dict[str, Any]:
    return {"content_type": "text", "parts": [text]}


def _chatgpt() -> dict[str, Any]:
    """Return a conversation with a tool, an image, thoughts, an unknown part and two versions of a reply."""
    image = {"content_type": "image_asset_pointer", "asset_pointer": "file-service://file-crane", "width": 1}
    slug = {"metadata": {"model_slug": "gpt-4o"}}
    mapping: dict[str, Any] = {
        "root": {"id": "root", "message": None, "parent": None, "children": ["system"]},
        "system": _node("root", "system", _text("")),
        "u1": _node("system", "user", {"content_type": "multimodal_text", "parts": [image, "What is it?"]}),
        "t1": _node(
            "u1", "assistant", {"content_type": "thoughts", "thoughts": [{"summary": "A", "content": "B"}]}
        ),
        "c1": _node("t1", "assistant", {"content_type": "code", "text": "1 + 1"}, recipient="python"),
        "r1": _node("c1", "tool", {"content_type": "execution_output", "text": "2"}, name="python"),
        "a1": _node("r1", "assistant", _text("A crane."), **slug),
        "u2": _node("a1", "user", _text("And its load?")),
        "a2": _node("u2", "assistant", _text("30 t."), **slug),
        "a3": _node("u2", "assistant", _text("40 t."), **slug),
        "n1": _node("a3", "assistant", {"content_type": "hologram", "beam": 7}),
    }
    return {"title": "Cranes", "mapping": mapping, "current_node": "n1", "create_time": 1.0}


def _claude() -> dict[str, Any]:
    use = {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {"q": "cranes"}}
    result = {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": [{"type": "text", "text": "3 hits"}],
    }
    content = [
        {"type": "thinking", "thinking": "Look it up."},
        use,
        result,
        {"type": "text", "text": "Three."},
        {"type": "flag", "flag": 1},
    ]
    asked: dict[str, Any] = {
        "uuid": "u1",
        "sender": "human",
        "text": "How many?",
        "content": [{"type": "text", "text": "How many?"}],
        "created_at": "2025-05-01T10:00:00.000000Z",
        "attachments": [{"file_name": "note.txt", "extracted_content": "Of cranes."}],
        "files": [{"file_name": "plan.png"}],
    }
    replied = {"uuid": "a1", "sender": "assistant", "text": "Three.", "content": content, "attachments": []}
    return {"uuid": "x", "name": "Counting", "chat_messages": [asked, replied]}


def _webui() -> dict[str, Any]:
    url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    thought = (
        '<details type="reasoning" done="true" duration="3">\n<summary>Thought</summary>\n> Hm.\n</details>\n'
    )
    messages = {
        "u1": {
            "id": "u1",
            "parentId": None,
            "childrenIds": ["a1"],
            "role": "user",
            "content": "See?",
            "timestamp": 1_700_000_000,
            "files": [{"type": "image", "url": url}, {"type": "file", "name": "plan.pdf"}],
        },
        "a1": {
            "id": "a1",
            "parentId": "u1",
            "role": "assistant",
            "content": f"{thought}Yes.",
            "model": "llama3",
        },
    }
    return {
        "id": "y",
        "title": "Seen",
        "chat": {"title": "x", "history": {"messages": messages, "currentId": "a1"}},
    }


async def test_conversations_of_chatgpt_in_a_zip_file_are_imported_with_branches_tools_and_images(
    gateway: Served, bus: Bus
) -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("conversations.json", json.dumps([_chatgpt()]))
        archive.writestr("file-crane-photo.png", PNG)
    async with gateway.http as http:
        [item] = await _items(http, data.getvalue())
    assert (item["title"], item["product"], item["runs"]) == ("Cranes", "chatgpt", 3)
    assert item["left_out"] == {"hologram": 1}
    events = await _stored(bus, gateway.tenant, item["conversation_id"])
    image = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    written = _written(events)
    parts: Any = written[0][1]
    assert [part.type for part in parts] == ["text", "image"] and parts[1].url == image
    assert written[1:] == [
        ("thought", "A\nB"),
        ("python", {"text": "1 + 1"}),
        ("result", {"success": True, "output": "2"}),
        ("assistant", "A crane."),
        ("user", "And its load?"),
        ("assistant", "30 t."),
        ("user", "And its load?"),
        ("assistant", "40 t."),
    ]
    crane = next(e.data.message_id for e in events if getattr(e.data, "content", None) == "A crane.")  # type: ignore[union-attr]  # a message
    branches = [e.data.settings.branch for e in events if isinstance(e.data, RunStarted)]
    assert branches[:2] == [None, None] and branches[2] is not None and branches[2].after == crane
    assert events[0].ts.year == 2023
    assert {e.data.model for e in events if isinstance(e.data, RunFinished)} == {"chatgpt:gpt-4o"}


async def test_conversations_of_claude_and_open_webui_are_imported_and_each_has_a_result(
    gateway: Served, bus: Bus
) -> None:
    """A conversation that cannot be read is named, and the others are imported."""
    broken = {"uuid": "z", "name": "Broken", "chat_messages": [{"uuid": 7}]}
    async with gateway.http as http:
        first, second, other, last = await _items(http, [_claude(), broken, {"sheet": 1}, _webui()])
        listed = (await http.get("/context/conversations")).json()["items"]
    assert (first["title"], first["left_out"]) == ("Counting", {"plan.png": 1, "flag": 1})
    assert _written(await _stored(bus, gateway.tenant, first["conversation_id"])) == [
        ("user", "How many?\n\nnote.txt\n\nOf cranes."),
        ("thought", "Look it up."),
        ("search", {"q": "cranes"}),
        ("result", {"success": True, "output": "3 hits"}),
        ("assistant", "Three."),
    ]
    assert second["conversation_id"] is None and "chat_messages.0.uuid" in second["error"]
    assert "Open WebUI" in other["error"]
    assert (last["title"], last["product"], last["left_out"]) == ("Seen", "open-webui", {"plan.pdf": 1})
    written = _written(await _stored(bus, gateway.tenant, last["conversation_id"]))
    assert written[1:] == [("thought", "> Hm."), ("assistant", "Yes.")]
    assert {one["title"] for one in listed} == {"Counting", "Seen"}


async def test_a_large_file_is_imported_in_several_requests_and_a_repeat_creates_nothing(
    gateway: Served,
) -> None:
    many = [_claude() | {"name": f"Number {number}"} for number in range(60)]
    async with gateway.http as http:
        key = {"idempotency-key": "import-1"}
        first = (await http.post(PATH, content=json.dumps(many), headers=key)).json()
        again = (await http.post(PATH, content=json.dumps(many), headers=key)).json()
        rest = (await http.post(PATH, content=json.dumps(many), params={"start": first["next"]})).json()
    assert (len(first["items"]), first["next"], again["created"]) == (50, 50, first["created"])
    assert (len(rest["items"]), rest["next"], rest["items"][-1]["title"]) == (10, None, "Number 59")


async def test_files_that_are_no_exports_and_that_exceed_a_limit_are_refused_with_the_reason(
    gateway: Served,
) -> None:
    empty, bomb = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(empty, "w") as archive:
        archive.writestr("notes.txt", "x")
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("conversations.json", b" " * (193 * 1024 * 1024))
    cases = {
        "JSON": [b"# Cranes", b"[1,", b"[" * 5_000],
        "zip": [empty.getvalue(), empty.getvalue()[:40]],
        "bytes of conversations": [bomb.getvalue()],
    }
    async with gateway.http as http:
        for expected, files in cases.items():
            for file in files:
                refused = await http.post(PATH, content=file)
                assert (refused.status_code, expected in refused.text) == (400, True), refused.text
        assert (await http.get("/context/conversations")).json()["items"] == []


async def test_a_refused_conversation_is_named_and_its_fault_is_in_plain_words(gateway: Served) -> None:
    """A person who imports hundreds finds the one that is left out, and reads no text of a library."""
    said = {"author": {"role": "user"}, "content": {"content_type": "text", "parts": ["hi", 5]}}
    node = {"id": "a", "parent": None, "children": [], "message": said}
    claude = {"uuid": "1", "sender": "human", "text": "hi", "created_at": "yesterday"}
    refused = [
        {"title": "Cranes", "mapping": {"a": node}, "current_node": "a"},
        {"name": "Ships", "chat_messages": [claude]},
    ]
    broken = {b"\xff[": "it is not UTF-8", b"[" * 9_000: "nested too deeply", b"[1 2": "its list has no end"}
    async with gateway.http as http:
        cranes, ships = await _items(http, refused)
        texts = [(await http.post(PATH, content=data)).json()["error"]["message"] for data in broken]
    assert (cranes["title"], ships["title"]) == ("Cranes", "Ships")
    assert cranes["error"].startswith("mapping.a.message.content.parts.1"), cranes
    assert "must be a string, got 5" in cranes["error"]
    assert ships["error"].startswith("chat_messages.0.created_at must be a time"), ships
    assert all(part in text for part, text in zip(broken.values(), texts, strict=True)), texts


async def test_an_export_with_an_impossible_history_is_refused_with_its_place(
    gateway: Served, agent: Agent
) -> None:
    def started(**data: Any) -> dict[str, Any]:
        message = {"message_id": "u1", "message": "Hi", "model": "demo:demo", **data}
        return {"type": "run.started", "run_id": "r1", "data": message}

    ended = {"status": "completed", "content": "", "service": "s", "model": "m", "iterations": 1}
    end = {"type": "run.finished", "run_id": "r1", "data": ended}
    call = {"type": "tool_call.requested", "run_id": "r1", "data": {"tool_call_id": "t", "name": "bash"}}
    reply = {"type": "message.completed", "run_id": "r1", "data": {"message_id": "a", "role": "assistant"}}
    reply["data"] = {**reply["data"], "content": None}
    cases: dict[str, list[dict[str, Any]]] = {
        "a run that ended": [started()],
        "events[0].message": [started(message=7), end],
        "in the order of a conversation": [started(), call, end],
        "a result of each call": [started(), reply, call, end],
        "events[1].status": [started(), {**end, "data": ended | {"status": "won"}}],
    }
    deep: Any = {}
    for _ in range(200):
        deep = {"d": deep}
    cases["nested at most 128 deep"] = [started(), {"type": "x", "data": deep}, end]
    async with gateway.http as http:
        for expected, events in cases.items():
            [item] = await _items(http, {"conversation": {}, "events": events})
            assert expected in str(item["error"]), (expected, item)
        assert (await http.get("/context/conversations")).json()["items"] == []


async def test_an_open_run_and_events_of_newer_versions_are_left_out_and_named(
    gateway: Served, agent: Agent, bus: Bus
) -> None:
    async with gateway.http as http:
        created = (await http.post("/context/conversations", json={"title": "Cranes"})).json()
        where = f"/context/conversations/{created['conversation_id']}"
        for text in ("One", "Open"):
            sent = (await http.post(f"{where}/runs", json={"content": text})).json()
            start = await agent.started(sent["conversation_id"])
            await agent.begin(start)
            if text == "One":
                await agent.finish(start, "Reply")
        events = (await http.get(f"{where}/events")).json()["items"]
        events.append({"type": "brand.new", "data": {}})
        [item] = await _items(http, {"conversation": created, "events": events})
    assert (item["runs"], item["left_out"]) == (1, {"open run": 1, "brand.new": 1})
    assert _written(await _stored(bus, agent.tenant, item["conversation_id"])) == [
        ("user", "One"),
        ("assistant", "Reply"),
    ]
