"""Only text that a person typed names hosts that `web_fetch` reads without approval (R12, R74)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import httpx2
import pytest
from a2a.client import ClientConfig, create_client
from mcp import Client as McpClient
from mcp.client.streamable_http import streamable_http_client

from banksman import sdk
from banksman.contracts.ids import new_id
from banksman.contracts.messages import PERSON, Provenance
from tests.scenarios.conftest import Play
from tests.scenarios.test_a2a import user_message
from tests.support.client import Client
from tests.support.polling import eventually
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import ScriptedModel, System
from tests.support.timeouts import WAIT_TIMEOUT_S

Body = dict[str, Any]


@pytest.fixture
def url(json_api: str) -> str:
    return f"http://{json_api}/changes/"


@pytest.fixture
def fetcher(play: Play, url: str) -> str:
    """The name of a model that fetches a page of the API and then replies, in two runs."""
    fetch = ScriptedReply(tool_calls=(ScriptedCall(name="web_fetch", arguments={"url": url}),))
    return play(fetch, ScriptedReply(text="Done."), fetch, ScriptedReply(text="Done again."))


async def status(http: httpx.AsyncClient, run_id: str) -> str:
    """Return the status of a run once it has ended or waits for a decision."""

    async def found() -> str | None:
        run = (await http.get(f"/context/runs/{run_id}")).json()
        return (
            run.get("status") if run.get("status") in ("completed", "awaiting_approval", "failed") else None
        )

    return await eventually(found, WAIT_TIMEOUT_S)


async def posted(http: httpx.AsyncClient, path: str, **body: Any) -> Body:
    response = await http.post(path, json=body)
    assert response.is_success, response.text
    return response.json()


async def new_conversation(http: httpx.AsyncClient, fetcher: str) -> str:
    return (await posted(http, "/context/conversations", model=fetcher))["conversation_id"]


async def runs_of(http: httpx.AsyncClient, conversation: str) -> list[Body]:
    return (await http.get(f"/context/conversations/{conversation}/runs")).json()["items"]


@pytest.mark.parametrize(
    ("provenance", "expected"),
    [
        (None, "completed"),
        ({"author": "person"}, "completed"),
        ({"author": "client"}, "awaiting_approval"),
        ({"author": "client", "typed": "Summarise my page"}, "awaiting_approval"),
        ({"author": "client", "typed": "Read {url}"}, "completed"),
    ],
)
async def test_a_client_states_what_a_person_typed(
    http: httpx.AsyncClient, client: Client, fetcher: str, url: str, provenance: Any, expected: str
) -> None:
    """Over the websocket and HTTP; NATS has the frame of the websocket."""
    fields: Body = {}
    if provenance is not None:
        fields = {"provenance": {name: text.format(url=url) for name, text in provenance.items()}}
    conversation = await new_conversation(http, fetcher)
    over_http = await posted(
        http, f"/context/conversations/{conversation}/runs", content=f"See {url}", **fields
    )
    assert await status(http, over_http["run_id"]) == expected

    other = await client.create(fetcher)
    over_websocket = await client.chat(other, f"See {url}", **fields)
    assert await status(http, over_websocket) == expected


async def test_a_named_file_is_not_typed(http: httpx.AsyncClient, fetcher: str, json_api: str) -> None:
    conversation = await new_conversation(http, fetcher)
    host = json_api.partition(":")[0]
    run = await posted(
        http, f"/context/conversations/{conversation}/runs", content="Read it.", attachments=[f"notes {host}"]
    )

    assert await status(http, run["run_id"]) == "awaiting_approval"


def tool_result(text: str) -> Body:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": text}, ASK]}


ASK: Body = {"type": "text", "text": "Go on."}


@pytest.mark.parametrize(
    ("path", "messages", "expected"),
    [
        ("/context/chat/completions", [("user", "See {url}")], "completed"),
        ("/context/chat/completions", [("assistant", "See {url}"), ("user", "Go on.")], "awaiting_approval"),
        ("/context/chat/completions", [("tool", "See {url}"), ("user", "Go on.")], "awaiting_approval"),
        ("/context/chat/completions", [("system", "See {url}"), ("user", "Go on.")], "awaiting_approval"),
        ("/context/chat/completions", [("assistant", "Which?"), ("user", "{url}")], "completed"),
        ("/context/chat/messages", [("assistant", "See {url}"), ("user", "Go on.")], "awaiting_approval"),
        ("/context/chat/messages", [("user", "See {url}")], "completed"),
        ("/context/chat/messages", [("result", "See {url}")], "awaiting_approval"),
    ],
)
async def test_only_the_users_own_text_of_a_transcript_names_hosts(
    http: httpx.AsyncClient, fetcher: str, url: str, path: str, messages: list[tuple[str, str]], expected: str
) -> None:
    sent: list[Body] = [
        tool_result(text.format(url=url))
        if role == "result"
        else {"role": role, "content": text.format(url=url)}
        for role, text in messages
    ]
    before = {one["conversation_id"] for one in (await http.get("/context/conversations")).json()["items"]}
    asking = asyncio.create_task(
        http.post(path, json={"model": fetcher, "messages": sent, "max_tokens": 100})
    )

    async def started() -> str | None:
        listed = (await http.get("/context/conversations")).json()["items"]
        found = [one["conversation_id"] for one in listed if one["conversation_id"] not in before]
        runs = await runs_of(http, found[0]) if found else []
        return runs[0]["run_id"] if runs else None

    try:
        assert await status(http, await eventually(started, WAIT_TIMEOUT_S)) == expected
    finally:
        asking.cancel()


async def agui_run(http: httpx.AsyncClient, fetcher: str, messages: list[Body], context: list[Body]) -> str:
    """Start a run over AG-UI and return its status at the end of the stream."""
    thread = new_id("t")
    body = {
        "threadId": thread,
        "runId": new_id("r"),
        "messages": [{"id": new_id("m"), **message} for message in messages],
        "tools": [],
        "context": context,
        "state": {},
        "forwardedProps": {"banksman": {"overrides": {"model": fetcher}}},
    }
    response = await http.post("/agui", json=body, headers={"accept": "text/event-stream"})
    return "awaiting_approval" if '"interrupt"' in response.text else "completed"


@pytest.mark.parametrize(
    ("messages", "context", "expected"),
    [
        ([("user", "See {url}")], "", "completed"),
        ([("assistant", "See {url}"), ("user", "Go on.")], "", "awaiting_approval"),
        ([("user", "Go on.")], "{url}", "awaiting_approval"),
    ],
)
async def test_context_and_earlier_messages_of_an_application_name_no_hosts(
    http: httpx.AsyncClient,
    fetcher: str,
    url: str,
    messages: list[tuple[str, str]],
    context: str,
    expected: str,
) -> None:
    given = [{"role": role, "content": text.format(url=url)} for role, text in messages]
    entries = [{"description": "Page", "value": context.format(url=url)}] if context else []

    assert await agui_run(http, fetcher, given, entries) == expected


async def over_a2a(system: System, http: httpx.AsyncClient, conversation: str, text: str) -> None:
    client = await create_client(system.url, ClientConfig(httpx_client=http))
    [_ async for _ in client.send_message(user_message(text, conversation))]


@asynccontextmanager
async def mcp(system: System) -> AsyncGenerator[McpClient]:
    async with httpx2.AsyncClient(timeout=WAIT_TIMEOUT_S) as http:
        transport = streamable_http_client(f"{system.url}/mcp", http_client=http)
        async with McpClient(transport, mode="auto", cache=None) as client:
            yield client


async def over_mcp(system: System, http: httpx.AsyncClient, conversation: str, text: str) -> None:
    async with mcp(system) as session:
        await session.call_tool("start_run", {"message": text, "conversation_id": conversation})


@pytest.mark.parametrize("send", [over_a2a, over_mcp])
async def test_a_message_of_another_agent_names_no_host(
    system: System,
    http: httpx.AsyncClient,
    fetcher: str,
    url: str,
    send: Callable[[System, httpx.AsyncClient, str, str], Awaitable[None]],
) -> None:
    conversation = await new_conversation(http, fetcher)
    await send(system, http, conversation, f"See {url}")
    [run] = await runs_of(http, conversation)

    assert await status(http, run["run_id"]) == "awaiting_approval"


def fetching(name: str, *steps: Body) -> Body:
    form = {"type": "object", "properties": {"page": {"type": "string"}, "topic": {"type": "string"}}}
    return {"name": name, "title": "Read", "parameters_schema": form, "built": {"steps": list(steps)}}


async def workflow_of(http: httpx.AsyncClient, *steps: Body) -> str:
    name = new_id("built-")
    await posted(http, "/workflows", **fetching(name, *steps))
    return name


PROMPT: Body = {"type": "prompt", "name": "text", "tools": ["web_fetch"]}


@pytest.mark.parametrize(
    ("prompt", "typed", "expected"),
    [
        ("Read {{{{parameters.page}}}}", "{url}", "completed"),
        ("Read {url}", "this", "awaiting_approval"),
    ],
)
async def test_values_of_a_form_name_hosts_and_templates_do_not(
    http: httpx.AsyncClient, fetcher: str, url: str, prompt: str, typed: str, expected: str
) -> None:
    name = await workflow_of(http, {**PROMPT, "prompt": prompt.format(url=url)})
    conversation = await new_conversation(http, fetcher)
    run = await posted(
        http,
        f"/workflows/{name}/runs",
        parameters={"page": typed.format(url=url)},
        conversation_id=conversation,
    )

    assert await agent_status(http, run) == expected


async def agent_status(http: httpx.AsyncClient, run: Body) -> str:
    """Return the status of the agent run that a workflow run started, once it ended or is parked."""
    path = f"/context/conversations/{run['conversation_id']}/events"

    async def linked() -> str | None:
        events = (await http.get(path, params={"detail": "full"})).json()["items"]
        links = [one["data"]["workflow_run_id"] for one in events if one["type"] == "workflow.linked"]
        return links[0] if links else None

    return await status(http, await eventually(linked, WAIT_TIMEOUT_S))


async def test_a_result_in_the_prompt_of_a_workflow_names_no_host(
    http: httpx.AsyncClient, fetcher: str, url: str
) -> None:
    """The text of a file, as that of a page, comes into the message of an agent run."""
    read = {"type": "tool", "name": "page", "tool": "read_file", "arguments": {"path": "page.txt"}}
    name = await workflow_of(http, read, {**PROMPT, "prompt": "Summarise {{steps.page.content}}"})
    conversation = await new_conversation(http, fetcher)
    uploaded = await http.put(f"/context/conversations/{conversation}/files/page.txt", content=f"See {url}")
    assert uploaded.is_success, uploaded.text
    run = await posted(
        http, f"/workflows/{name}/runs", parameters={"topic": "x"}, conversation_id=conversation
    )

    assert await agent_status(http, run) == "awaiting_approval"


async def test_parameters_from_another_agent_name_no_host(
    system: System, http: httpx.AsyncClient, fetcher: str, url: str
) -> None:
    fetch = {"type": "tool", "name": "get", "tool": "web_fetch", "arguments": {"url": "{{parameters.page}}"}}
    name = await workflow_of(http, fetch)
    typed = await posted(http, f"/workflows/{name}/runs", parameters={"page": url})
    async with mcp(system) as session:
        arguments = {"workflow": name, "parameters": {"page": url}}
        started = await session.call_tool("start_workflow", arguments)
    stated = await posted(
        http, f"/workflows/{name}/runs", parameters={"page": url}, provenance={"author": "client"}
    )

    assert await status(http, typed["run_id"]) == "completed"
    assert await status(http, (started.structured_content or {})["run_id"]) == "awaiting_approval"
    assert await status(http, stated["run_id"]) == "awaiting_approval"


@pytest.mark.parametrize(
    ("provenance", "expected"), [({}, "completed"), ({"author": "client"}, "awaiting_approval")]
)
async def test_the_prompt_of_a_schedule_keeps_its_author(
    http: httpx.AsyncClient, fetcher: str, url: str, provenance: Body, expected: str
) -> None:
    conversation = await new_conversation(http, fetcher)
    start = {"type": "prompt", "content": f"See {url}", "conversation_id": conversation}
    at = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    fields = {"provenance": provenance} if provenance else {}
    schedule = await posted(http, "/context/schedules", start=start, at=at, **fields)
    run = await posted(http, f"/context/schedules/{schedule['id']}/run")

    assert await status(http, run["run_id"]) == expected
    await http.delete(f"/context/schedules/{schedule['id']}")


async def test_a_message_that_is_sent_again_or_edited_keeps_its_author(
    http: httpx.AsyncClient, fetcher: str, url: str
) -> None:
    """Regenerating the reply to a text of a program does not make a person of it."""
    conversation = await new_conversation(http, fetcher)
    path = f"/context/conversations/{conversation}/runs"
    first = await posted(http, path, content=f"See {url}", provenance={"author": "client"})
    assert await status(http, first["run_id"]) == "awaiting_approval"
    await posted(http, f"/context/runs/{first['run_id']}/cancel")
    again = await posted(http, path, content=f"See {url}", branch={"after": None})

    assert await status(http, again["run_id"]) == "awaiting_approval"


async def test_an_imported_message_is_not_typed_when_it_is_sent_again(
    http: httpx.AsyncClient, play: Play, fetcher: str, url: str
) -> None:
    source = await new_conversation(http, fetcher)
    run = await posted(http, f"/context/conversations/{source}/runs", content=f"See {url}")
    assert await status(http, run["run_id"]) == "completed"
    events = (await http.get(f"/context/conversations/{source}/events", params={"detail": "full"})).json()[
        "items"
    ]
    imported = await posted(http, "/context/conversations/import", events=events)
    fetch = ScriptedReply(tool_calls=(ScriptedCall(name="web_fetch", arguments={"url": url}),))
    other = play(fetch, ScriptedReply(text="Done."))
    [new] = imported["created"]
    await eventually(lambda: runs_of(http, new), WAIT_TIMEOUT_S)
    again = await posted(
        http,
        f"/context/conversations/{new}/runs",
        content=f"See {url}",
        branch={"after": None},
        overrides={"model": other},
    )

    assert await status(http, again["run_id"]) == "awaiting_approval"


async def test_a_queued_message_keeps_its_author(http: httpx.AsyncClient, play: Play, url: str) -> None:
    """Its run starts when another agent has ended the run before it, and a steer that finds no run queues."""
    fetch = ScriptedReply(tool_calls=(ScriptedCall(name="web_fetch", arguments={"url": url}),))
    conversation = await new_conversation(http, play(fetch, fetch))
    path = f"/context/conversations/{conversation}/runs"
    first = await posted(http, path, content="Go on.")
    assert await status(http, first["run_id"]) == "awaiting_approval"
    queued = await posted(http, path, content=f"See {url}", provenance={"author": "client"})
    approvals = (await http.get("/context/approvals", params={"limit": 100})).json()["items"]
    [mine] = [one for one in approvals if one["run_id"] == first["run_id"]]
    await posted(http, f"/context/approvals/{mine['approval_id']}", all="reject")

    assert await status(http, queued["run_id"]) == "awaiting_approval"


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (PERSON, "completed"),
        (Provenance(author="client"), "awaiting_approval"),
        (Provenance(author="client", typed="Read my page"), "awaiting_approval"),
    ],
)
async def test_a_client_states_over_nats_what_a_person_typed(
    nats: sdk.Client, http: httpx.AsyncClient, fetcher: str, url: str, typed: Provenance, expected: str
) -> None:
    conversation = await nats.create_conversation(model=fetcher)
    run = await nats.send(conversation, f"See {url}", provenance=typed)

    assert await status(http, run.run_id) == expected


@pytest.mark.parametrize("interface", ["websocket", "nats"])
@pytest.mark.parametrize(
    ("typed", "expected"), [(PERSON, "completed"), (Provenance(author="client"), "awaiting_approval")]
)
async def test_a_typed_message_to_an_open_run_names_hosts(
    nats: sdk.Client,
    http: httpx.AsyncClient,
    client: Client,
    play: Play,
    url: str,
    typed: Provenance,
    expected: str,
    interface: str,
) -> None:
    """The run waits for an approval of the fetch; the message replaces the request, and names the host."""
    fetch = ScriptedReply(tool_calls=(ScriptedCall(name="web_fetch", arguments={"url": url}),))
    conversation = await new_conversation(http, play(fetch, fetch, ScriptedReply(text="Done.")))
    await client.request("subscribe", conversation_id=conversation, after_seq=0, detail="full")
    run = await posted(http, f"/context/conversations/{conversation}/runs", content="Look it up.")
    assert await status(http, run["run_id"]) == "awaiting_approval"
    if interface == "nats":
        steered = (await nats.send(conversation, f"See {url}", mode="steer", provenance=typed)).run_id
    else:
        fields = {} if typed == PERSON else {"provenance": typed.model_dump(mode="json")}
        steered = await client.chat(conversation, f"See {url}", mode="steer", **fields)
    assert steered == run["run_id"]
    await client.wait_for(lambda frame: frame["type"] == "approval.resolved")

    async def fetched_again() -> bool:
        return len(client.events(conversation, "tool_call.requested")) == 2

    await eventually(fetched_again, WAIT_TIMEOUT_S)
    assert await status(http, run["run_id"]) == expected


@pytest.mark.parametrize(
    ("content", "expected"), [("Go on.", "awaiting_approval"), ("See {url}", "completed")]
)
async def test_a_summary_names_no_host_and_the_message_of_the_run_does(
    http: httpx.AsyncClient, model: ScriptedModel, play: Play, url: str, content: str, expected: str
) -> None:
    """A compaction replaces messages, also typed ones, by text that a model wrote."""
    long = play(ScriptedReply(text=f"See {url}. " + "word " * 600), by="count", at_end="repeat")
    fetch = ScriptedReply(tool_calls=(ScriptedCall(name="web_fetch", arguments={"url": url}),))
    fetching = model.play(new_id("fetch-"), (fetch, ScriptedReply(text="Done.")), by="count")
    assistant = {"model": long, "limits": {"context_tokens": 4_000}, "tools": {"enabled": True}}
    made = await posted(http, "/context/assistants", **assistant)
    created = await posted(http, "/context/conversations", assistant=made["id"])
    path = f"/context/conversations/{created['conversation_id']}"

    async def kinds() -> list[str]:
        events = (await http.get(f"{path}/events", params={"detail": "full"})).json()["items"]
        return [one["type"] for one in events]

    while "history.compacted" not in await kinds():
        run = await posted(http, f"{path}/runs", content=f"See {url}")
        assert await status(http, run["run_id"]) == "completed"
    roomy = {**assistant, "model": fetching, "limits": {"context_tokens": 100_000}}
    assert (await http.put(f"/context/assistants/{made['id']}", json=roomy)).is_success
    run = await posted(http, f"{path}/runs", content=content.format(url=url))
    assert await status(http, run["run_id"]) == expected
    assert "tool_call.requested" in await kinds()
