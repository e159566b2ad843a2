"""A conversation that is limited to people: everyone else gets what they get for an unknown id."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator
from datetime import UTC, datetime
from typing import Any, get_args

import httpx
import pytest
from tests.gateway.conftest import TOKENS, Agent, GatewayFactory, Receiver, Served, key_of
from tests.gateway.http.test_rights import (
    NOT_OF_A_TENANT,
    PARAMETER,
    anonymous,
    bearer,
    operations,
    owned,
    send_valid,
)
from tests.gateway.mcp.test_mcp_server import connected, refused
from tests.gateway.played_workflows import play_workflows
from tests.support.polling import eventually
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.bus.connection import Bus
from banksman.bus.publish import record_action
from banksman.contracts import subjects
from banksman.contracts.administration import AuditEntry, DecisionDetails
from banksman.contracts.frames import ClientFrame
from banksman.contracts.ids import approval_id_for, new_id, part_of, run_id_for
from banksman.contracts.live_output import Delta
from banksman.contracts.work import ApprovalRequest
from banksman.gateway.composition import FEATURES, operations_of
from banksman.gateway.conversations.people import MAX_PEOPLE
from banksman.gateway.operation.declaration import Operation
from banksman.gateway.operation.dispatch import KINDS

PEOPLE = "/context/conversations/{}/people"
SECRET = "the heron lands at dawn"
OF_OTHER_THINGS = frozenset(
    (
        *("assistant_id", "config_id", "device_id", "key_id", "letter_id", "prompt_id", "schedule_id"),
        *("server_id", "step_id", "system_prompt_id", "tool_call_id", "process_id", "webhook_id"),
        *("name", "path", "revision", "tenant", "workflow", "assistant", "message_id"),
    )
)
"""Parameters of paths that name nothing of a conversation, or a part of one that another parameter names."""


@pytest.fixture
async def shared(start_gateway: GatewayFactory, tenant: str) -> AsyncGenerator[Served]:
    """A gateway with keys of three people of a tenant: alice, who limits, carol among her people, and bob."""
    keys = (
        key_of("alice", tenant, rights=("chat", "approve", "admin")),
        key_of("carol", tenant, rights=("chat", "approve")),
        key_of("bob", tenant, rights=("chat", "approve")),
        key_of("dan", tenant, rights=("chat", "approve", "admin")),
    )
    async with start_gateway(keys=keys, requests_per_s=0) as served:
        served.headers = bearer(TOKENS["alice"])
        yield served


class Person:
    def __init__(self, http: httpx.AsyncClient, user: str) -> None:
        self._http = http
        self._headers = bearer(TOKENS[user])

    async def __call__(self, method: str, path: str, **body: Any) -> httpx.Response:
        json_body = body or (None if method in ("GET", "DELETE") else {})
        return await self._http.request(method, path, json=json_body, headers=self._headers)

    async def items(self, path: str) -> list[dict[str, Any]]:
        return (await self("GET", path)).json()["items"]


async def limit(http: httpx.AsyncClient, conversation_id: str, *people: str) -> None:
    response = await http.put(PEOPLE.format(conversation_id), json={"people": people})
    assert response.json()["people"][1:] == [one for one in people if one != "alice"], response.text


def test_each_parameter_that_may_name_a_part_of_a_conversation_is_known() -> None:
    """A parameter of a new operation is checked by its name: one with another name needs a decision here."""
    known = OF_OTHER_THINGS | KINDS.keys()
    for operation in operations_of(FEATURES):
        assert set(operation.path_parameters) <= known, operation.name
    for frame in get_args(get_args(ClientFrame)[0]):
        ids = {name for name in frame.model_fields if name.endswith("_id")}
        assert ids <= known, frame.__name__


def test_only_operations_that_show_no_content_are_open_for_hidden_conversations() -> None:
    assert {one.name for one in operations_of(FEATURES) if one.of_hidden} == {
        "conversation.share",
        "operator.cancel",
    }


def of_conversations(operation: str) -> bool:
    path = operation.partition(" ")[2]
    return path not in NOT_OF_A_TENANT and not KINDS.keys().isdisjoint(PARAMETER.findall(path))


async def test_every_path_of_a_limited_conversation_is_unknown_to_others(
    shared: Served, agent: Agent
) -> None:
    async with shared.http as http:
        alice = await owned(http, agent)
        await limit(http, alice["conversation_id"], "carol")
        unknown = alice | {
            "conversation_id": new_id("c"),
            "run_id": run_id_for(new_id("c")),
            **{name: approval_id_for(run_id_for(new_id("c"))) for name in ("approval_id", "request_id")},
        }
        found = [one for one in await operations(http) if of_conversations(one)]
        for operation in found:
            path = operation.partition(" ")[2]
            hidden = await send_valid(http, operation, path, alice)
            missing = await send_valid(http, operation, path, unknown)
            assert hidden.status_code == missing.status_code == 404, (operation, hidden.text, missing.text)
            assert anonymous(hidden, alice.values()) == anonymous(missing, unknown.values()), operation
        carol = Person(http, "carol")
        read = await carol("GET", f"/context/conversations/{alice['conversation_id']}")
        listed = await carol.items("/context/conversations")

    assert len(found) > 25
    assert [one["people"] for one in (read.json(), *listed)] == [["alice", "carol"]] * 2


NATS_BODIES: dict[str, dict[str, Any]] = {
    "chat.send": {"content": "hi"},
    "approval.reply": {"all": "approve"},
    "input.reply": {"value": 1},
    "conversation.rename": {"title": "mine"},
    "file.read": {"path": "x"},
    "file.write": {"path": "x", "data_base64": ""},
    "file.delete": {"path": "x"},
    "file.unpack": {"path": "a.zip"},
    "process.read": {"process_id": "p1"},
    "process.stop": {"process_id": "p1"},
    "output.read": {"tool_call_id": "k1"},
    "step.read": {"step_id": "s1"},
}


def over_nats() -> Iterator[Operation]:
    for one in operations_of(FEATURES):
        if one.named in KINDS and not (one.not_over_nats or one.of_hidden):
            yield one


async def test_every_request_over_nats_about_a_limited_conversation_names_something_unknown(
    shared: Served, agent: Agent, bus: Bus
) -> None:
    """The user of a tenant's services, `nats`, is not among the people."""
    async with shared.http as http:
        alice = await owned(http, agent)
        await limit(http, alice["conversation_id"], "carol")
    codes: dict[str, str] = {}
    for operation in over_nats():
        body = NATS_BODIES.get(operation.name, {})
        if operation.name == "run.cancel":
            body = {"run_id": alice["run_id"]}
        subject = subjects.api(agent.tenant, *operation.name.split("."), alice[operation.named or ""])
        reply = json.loads(await bus.request(subject, json.dumps(body).encode(), WAIT_TIMEOUT_S))
        codes[operation.name] = reply.get("code", "ok")
    assert set(codes.values()) == {"not_found"}, codes
    assert {"chat.send", "replay", "file.read", "run.read", "approval.reply", "input.reply"} <= codes.keys()


FRAME_FIELDS: dict[str, dict[str, Any]] = {
    "chat.send": {"content": "hi"},
    "approval.reply": {"all": "approve"},
    "input.reply": {"value": 1},
    "workflow.start": {"workflow": "demo"},
}


OF_NO_CONVERSATION = frozenset(
    ("hello", "auth.refresh", "ping", "approvals.subscribe", "conversation.create", "unsubscribe")
)
"""Frames that ignore the conversation of their envelope, and one that gets the same reply for any id."""


def frames_of(ids: dict[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the type and the fields of each frame that may name a part of a conversation."""
    for frame in get_args(get_args(ClientFrame)[0]):
        (kind,) = get_args(frame.model_fields["type"].annotation)
        fields = {name: ids[name] for name in KINDS if name in frame.model_fields}
        if fields and kind not in OF_NO_CONVERSATION:
            yield kind, FRAME_FIELDS.get(kind, {}) | fields


async def test_every_frame_about_a_limited_conversation_names_something_unknown(
    shared: Served, agent: Agent
) -> None:
    async with shared.http as http:
        alice = await owned(http, agent)
        await limit(http, alice["conversation_id"], "carol")
    resumed = [{"conversation_id": alice["conversation_id"], "after_seq": 0}]
    async with shared.socket("bob", resume=resumed) as bob, shared.socket("carol") as carol:
        replies = {kind: await bob.request(kind, **fields) for kind, fields in frames_of(alice)}
        followed = await carol.request("subscribe", conversation_id=alice["conversation_id"], after_seq=0)
        not_resumed = bob.welcome["not_resumed"]
    assert {kind: reply["code"] for kind, reply in replies.items()} == dict.fromkeys(
        ("subscribe", "chat.send", "run.cancel", "approval.reply", "input.reply", "workflow.start"),
        "not_found",
    )
    assert followed["type"] == "subscribed"
    assert [one["conversation_id"] for one in not_resumed] == [alice["conversation_id"]]


async def test_bodies_and_queries_that_name_a_limited_conversation_name_something_unknown(
    shared: Served, agent: Agent
) -> None:
    chat = {"model": "demo:demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
    schedule: dict[str, Any] = {"cron": "0 0 1 1 *", "start": {"type": "prompt", "content": "hi"}}

    async def asked(http: httpx.AsyncClient, conversation: str, run: str, user: str = "bob") -> list[Any]:
        person = Person(http, user)
        named = {"conversation_id": conversation}
        start = schedule["start"] | named
        message = {"messageId": new_id("m"), "role": "ROLE_USER", "parts": [{"text": "hi"}]}

        async def rpc(name: str, **params: Any) -> Any:
            call = {"jsonrpc": "2.0", "id": 1, "method": name, "params": params}
            body = (await http.post("/a2a", json=call, headers=bearer(TOKENS[user]))).json()
            return body.get("error", {}).get("code", body)

        return [
            (await person("POST", "/context/chat", content="hi", **named)).status_code,
            (await person("POST", "/context/chat/completions", **chat, **named)).status_code,
            (await person("POST", "/context/chat/completions", stream=True, **chat, **named)).status_code,
            (await person("POST", "/context/chat/messages", **chat, **named)).status_code,
            (await person("POST", "/workflows/demo/runs", **named)).status_code,
            (await person("POST", "/context/schedules", **schedule | {"start": start})).status_code,
            (
                await person("GET", f"/v1/system-prompts/default/enhanced?conversation_id={conversation}")
            ).status_code,
            await rpc("GetTask", id=run),
            await rpc("SubscribeToTask", id=run),
            await rpc("CancelTask", id=run),
            await rpc("ListTasks", contextId=conversation),
            await rpc("SendMessage", message=message | {"contextId": conversation}),
            await rpc("ListTaskPushNotificationConfigs", taskId=run),
        ]

    async with shared.http as http:
        alice = await owned(http, agent)
        conversation, run = alice["conversation_id"], alice["run_id"]
        await limit(http, conversation, "carol")
        hidden = await asked(http, conversation, run)
        missing = await asked(http, (other := new_id("c")), run_id_for(other))
        thread = {"threadId": conversation, "runId": "r1", "messages": [], "tools": [], "context": []}
        loaded = await Person(http, "bob")("POST", "/agui", **thread)
        of_carol = await Person(http, "carol")("POST", "/agui", **thread)
    assert hidden == missing
    assert hidden[:7] == [404] * 7
    assert "approval" not in loaded.text and alice["approval_id"] in of_carol.text


def decision_on(request: ApprovalRequest) -> AuditEntry:
    """Return the entry that an agent records when a request is decided."""
    details = DecisionDetails(
        conversation_id=request.conversation_id, run_id=request.run_id, commit=0, tools=("bash",)
    )
    return AuditEntry(
        ts=datetime.now(UTC),
        tenant=request.tenant,
        actor="alice",
        interface="http",
        action="approval.approved",
        target=request.approval_id,
        details=details.model_dump(mode="json"),
    )


async def test_lists_and_search_leave_a_limited_conversation_out(shared: Served, agent: Agent) -> None:
    paths = {
        "conversations": "/context/conversations",
        "search": f"/context/search?q={SECRET}",
        "approvals": "/context/approvals",
        "remembered": "/context/remembered",
        "decisions": "/context/decisions",
        "schedules": "/context/schedules",
        "coming": "/context/schedules/coming",
    }
    async with shared.http as http:
        alice, bob, carol = (Person(http, user) for user in ("alice", "bob", "carol"))
        conversation = (await alice("POST", "/context/conversations", title=SECRET)).json()["conversation_id"]
        await alice("POST", f"/context/conversations/{conversation}/runs", content=SECRET)
        start = await agent.started(conversation)
        await agent.begin(start)
        first = await agent.request_approval(start, SECRET)
        await alice("POST", f"/context/approvals/{first.approval_id}", all="approve", remember="conversation")
        await agent.resolve(first)
        await agent.request_approval(start, SECRET)
        await record_action(agent.bus, decision_on(first), msg_id=new_id("x"))
        prompt = {"type": "prompt", "content": SECRET, "conversation_id": conversation}
        schedule = (await alice("POST", "/context/schedules", start=prompt, cron="0 * * * *")).json()["id"]
        before = {name: await bob.items(path) for name, path in paths.items()}
        await limit(http, conversation, "carol")
        after = {name: await bob.items(path) for name, path in paths.items()}
        of_carol = {name: await carol.items(path) for name, path in paths.items()}
        read = await bob("GET", f"/context/schedules/{schedule}")
        started = await bob("POST", f"/context/schedules/{schedule}/run")

    assert [name for name in paths if not before[name]] == [], "what is not listed before proves nothing"
    assert {name: items for name, items in after.items() if items} == {}
    assert [name for name in paths if not of_carol[name]] == []
    assert (read.status_code, started.status_code) == (404, 404)


async def test_open_subscriptions_and_streams_of_those_removed_end_with_a_reason(
    shared: Served, agent: Agent, bus: Bus
) -> None:
    async with shared.http as http, shared.socket("bob") as bob, shared.socket("carol") as carol:
        conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        for socket in (bob, carol):
            await socket.request("subscribe", conversation_id=conversation, after_seq=0, detail="full")
        streaming = asyncio.create_task(streamed(shared, conversation))
        start = await eventually(lambda: started_in(agent, conversation), WAIT_TIMEOUT_S)
        await agent.begin(start)
        for socket in (bob, carol):
            await socket.until_type("iteration.started")
        await limit(http, conversation, "carol")
        ended = await bob.until_type("resync_required")
        lines = await streaming
        await say(bus, agent.tenant, conversation, start.run_id, SECRET)
        await carol.until_type("message.delta")
        await agent.finish(start, SECRET)
        await carol.until_type("run.finished")
        again = await bob.request("subscribe", conversation_id=conversation, after_seq=0)

    assert ended["conversation_id"] == conversation and "limited to other people" in ended["reason"]
    assert again["code"] == "not_found"
    assert SECRET not in json.dumps(bob.frames)
    assert "limited to other people" in lines and SECRET not in lines


async def started_in(agent: Agent, conversation: str) -> Any:
    try:
        return await agent.started(conversation)
    except AssertionError:
        return None


async def streamed(shared: Served, conversation: str) -> str:
    """Start a run as bob, and return the text of its stream."""
    async with shared.http as http:
        path = f"/context/conversations/{conversation}/runs"
        headers = bearer(TOKENS["bob"]) | {"accept": "text/event-stream"}
        return (await http.post(path, json={"content": "hi"}, headers=headers)).text


async def say(bus: Bus, tenant: str, conversation: str, run_id: str, text: str) -> None:
    delta = Delta(conversation_id=conversation, run_id=run_id, message_id="m1", offset=0, text=text)
    await bus.publish(subjects.delta(tenant, conversation), delta.model_dump_json().encode())


async def test_a_wait_for_an_outcome_ends_unknown_if_the_conversation_is_limited_meanwhile(
    shared: Served, agent: Agent
) -> None:
    async with shared.http as http:
        ids = await owned(http, agent)
        start = await agent.started(ids["conversation_id"])
        waiting = asyncio.create_task(Person(http, "bob")("GET", f"/context/runs/{ids['run_id']}?wait_s=20"))
        await asyncio.sleep(0)
        await limit(http, ids["conversation_id"], "carol")
        await agent.finish(start, SECRET)
        found = await waiting
    assert (found.status_code, SECRET in found.text) == (404, False)


async def test_another_user_who_continues_a_websocket_keeps_no_hidden_subscription(shared: Served) -> None:
    async with shared.http as http, shared.socket("carol") as socket:
        conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        await limit(http, conversation, "carol")
        await socket.request("subscribe", conversation_id=conversation, after_seq=0)
        await socket.send("auth.refresh", token=TOKENS["bob"])
        ended = await socket.until_type("resync_required")
    assert ended["conversation_id"] == conversation


async def test_who_may_limit_a_conversation(shared: Served) -> None:
    async with shared.http as http:
        people = {user: Person(http, user) for user in ("alice", "bob", "carol", "dan")}
        conversation = (await people["bob"]("POST", "/context/conversations")).json()["conversation_id"]
        path = PEOPLE.format(conversation)

        async def asked(user: str, *names: str) -> tuple[int, list[str] | None]:
            response = await people[user]("PUT", path, people=names)
            return response.status_code, response.json().get("people")

        found = [
            await asked("carol"),  # created by another, and not limited
            await asked("bob", "carol", "carol"),
            await asked("carol", "bob"),
            await asked("carol"),  # leaves bob out
            await asked("bob", "bob"),
            await asked("dan", "bob"),  # an administrator, who thereby becomes one of its people
            (await people["carol"]("GET", f"/context/conversations/{conversation}")).status_code,
            (await people["bob"]("PUT", path, people=None)).json()["people"],
            (await people["carol"]("GET", f"/context/conversations/{conversation}")).status_code,
            (await people["bob"]("PUT", path)).status_code,
            await asked("bob", *(f"u{number}" for number in range(MAX_PEOPLE))),
            (await people["bob"]("PUT", path, people=["x" * 201])).status_code,
            (await people["bob"]("PUT", PEOPLE.format("c1"), people=[])).status_code,
        ]
        trail = await people["dan"].items("/v1/audit?action=conversation.shared")

    assert found == [
        (403, None),
        (200, ["bob", "carol"]),
        (200, ["carol", "bob"]),
        (200, ["carol"]),
        (404, None),
        (200, ["dan", "bob"]),
        404,
        None,
        200,
        400,
        (400, None),
        400,
        404,
    ]
    assert [(one["actor"], one["target"], one["details"]["people"]) for one in trail][:2] == [
        ("bob", conversation, None),
        ("dan", conversation, ["dan", "bob"]),
    ]


async def test_a_gateway_that_starts_applies_the_limits_and_a_damaged_entry_hides_its_conversation(
    shared: Served, start_gateway: GatewayFactory, bus: Bus, tenant: str
) -> None:
    async with shared.http as http:
        limited, damaged = [
            (await http.post("/context/conversations", json={})).json()["conversation_id"] for _ in range(2)
        ]
        for one in (limited, damaged):
            await limit(http, one, "carol")
    await bus.publish(f"$KV.conversation-people.{tenant}.{damaged}", b'{"people": 1}')
    keys = (key_of("alice", tenant), key_of("bob", tenant), key_of("carol", tenant))
    async with start_gateway(keys=keys) as later, later.http as http:
        statuses = {
            (user, one): (await Person(http, user)("GET", f"/context/conversations/{one}")).status_code
            for user in ("bob", "carol")
            for one in (limited, damaged)
        }
    assert statuses == {
        ("bob", limited): 404,
        ("carol", limited): 200,
        ("bob", damaged): 404,
        ("carol", damaged): 404,
    }


async def test_what_comes_from_a_limited_conversation_is_limited_too(shared: Served, agent: Agent) -> None:
    """Requests for its title, and agent runs of its workflows, have ids that begin with its own."""
    async with shared.http as http:
        ids = await owned(http, agent)
        await limit(http, ids["conversation_id"], "carol")
        part = run_id_for(part_of(ids["conversation_id"]))
        request = (await agent.started(ids["conversation_id"])).model_copy(
            update={"conversation_id": part.rpartition("-")[0], "run_id": part}
        )
        await agent.begin(request)
        asked = await agent.request_approval(request, SECRET)
        seen = {
            user: [one["approval_id"] for one in await Person(http, user).items("/context/approvals")]
            for user in ("bob", "carol")
        }
        decided = await Person(http, "bob")("POST", f"/context/approvals/{asked.approval_id}", all="approve")
    assert (seen["bob"], asked.approval_id in seen["carol"], decided.status_code) == ([], True, 404)


async def test_a_workflow_that_is_started_in_a_limited_conversation_is_limited_to_its_people(
    shared: Served,
) -> None:
    definition = await play_workflows(shared.bus)
    async with shared.http as http:
        conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        await limit(http, conversation, "carol")
        carol, bob = Person(http, "carol"), Person(http, "bob")
        path = f"/workflows/{definition.name}/runs"
        body = {"conversation_id": conversation, "parameters": {"name": "x"}}
        begun = (await carol("POST", path, **body)).json()["conversation_id"]
        found = await carol.items("/context/conversations")
        of_bob = await bob.items("/context/conversations")
    listed = {one["conversation_id"]: one["people"] for one in found}
    assert (listed[begun], of_bob) == (["alice", "carol"], [])


async def test_a_webhook_of_someone_else_gets_nothing_of_a_limited_conversation(
    start_gateway: GatewayFactory, receiver: Receiver, agent: Agent, tenant: str
) -> None:
    """A webhook, a device and a task receiver act for the user who created them."""
    rights = ("chat", "approve", "admin")
    keys = tuple(key_of(user, tenant, rights=rights) for user in ("alice", "dan"))
    hook = {"url": receiver.url, "events": ["approval.requested"]}
    async with start_gateway(keys=keys, webhook_addresses=(receiver.address,)) as served, served.http as http:
        alice, dan = Person(http, "alice"), Person(http, "dan")
        made = {
            user: (await one("POST", "/context/webhooks", **hook)).json()["id"]
            for user, one in (("alice", alice), ("dan", dan))
        }
        hidden, shown = [
            (await alice("POST", "/context/conversations")).json()["conversation_id"] for _ in range(2)
        ]
        await alice("PUT", PEOPLE.format(hidden), people=[])
        for conversation in (hidden, shown):
            await alice("POST", f"/context/conversations/{conversation}/runs", content="hi")
            start = await agent.started(conversation)
            await agent.begin(start)
            await agent.request_approval(start, f"echo {conversation}")
        bodies = [(await receiver.message(number))[1] for number in (1, 2, 3)]
        listed = {user: len(await dan.items(f"/context/webhooks/{made[user]}/deliveries")) for user in made}
    assert sorted(hidden in body for body in bodies) == [False, False, True]
    assert listed == {"alice": 2, "dan": 1}


async def test_a_client_of_mcp_knows_no_run_of_a_limited_conversation(shared: Served, agent: Agent) -> None:
    async with shared.http as http:
        ids = await owned(http, agent)
        await limit(http, ids["conversation_id"], "carol")
    async with connected(shared, TOKENS["bob"]) as client:
        texts = [
            await refused(client, "read_run", run_id=ids["run_id"], wait_s=5),
            await refused(client, "cancel_run", run_id=ids["run_id"]),
            await refused(client, "start_run", message="hi", conversation_id=ids["conversation_id"]),
            await refused(client, "decide_approval", approval_id=ids["approval_id"], decision="approve"),
        ]
        listed = await client.call_tool("list_approvals", {})
    assert [
        "no run" in texts[0],
        "no run" in texts[1],
        "no conversation" in texts[2],
        "no app" in texts[3],
    ] == [True] * 4
    assert listed.structured_content == {"items": []}


async def test_a_service_limits_a_conversation_over_nats(shared: Served, bus: Bus, tenant: str) -> None:
    """The user `nats` acts for a service of the tenant, which has the rights of an administrator."""
    async with shared.http as http:
        conversation = (await http.post("/context/conversations", json={})).json()["conversation_id"]
        subject = subjects.api(tenant, "conversation", "share", conversation)
        reply = json.loads(await bus.request(subject, b'{"people": ["carol"]}', WAIT_TIMEOUT_S))
        read = await http.get(f"/context/conversations/{conversation}")
    assert (reply["people"], read.status_code) == (["nats", "carol"], 404)
