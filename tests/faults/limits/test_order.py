"""What was acknowledged first runs first (P19): bursts over each interface, for one agent and for two."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import httpx
import pytest

from banksman import sdk
from tests.faults.limits.conftest import Stage
from tests.scenarios.conftest import Play
from tests.support.client import Client
from tests.support.replies import bash
from tests.support.scripted_models import Gate, ScriptedReply
from tests.support.system import ScriptedModel

pytestmark = pytest.mark.timeout(120)

Send = Callable[[str, str], Awaitable[str]]
"""Sends a message to a conversation; returns its run when it is acknowledged."""
INTERFACES = ("websocket", "http", "nats")
LIMIT = 100
FINE = ScriptedReply(text="Fine.")


@pytest.fixture
def send(interface: str, client: Client, http: httpx.AsyncClient, nats: sdk.Client) -> Send:
    async def over_http(conversation: str, content: str) -> str:
        path = f"/context/conversations/{conversation}/runs"
        response = await http.post(path, json={"content": content})
        assert response.status_code == 202, response.text
        return str(response.json()["run_id"])

    async def over_nats(conversation: str, content: str) -> str:
        return (await nats.send(conversation, content)).run_id

    return {"websocket": client.chat, "http": over_http, "nats": over_nats}[interface]


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("number", [5, 50])
async def test_a_burst_runs_in_the_order_of_its_acknowledgements(
    client: Client, play: Play, send: Send, number: int
) -> None:
    """P19: to five idle conversations in turn, by two agents."""
    conversations = [await client.create(play(FINE, at_end="repeat")) for _ in range(5)]
    sent = {one: [await send(one, f"{n}") for n in range(number)] for one in conversations}

    for conversation, runs in sent.items():
        await client.finished(runs[-1])
        assert started(client, conversation) == runs


@pytest.mark.parametrize("interface", INTERFACES)
async def test_messages_behind_an_open_run_keep_their_order(
    client: Client, play: Play, model: ScriptedModel, send: Send, interface: str
) -> None:
    """P19: a reply is held, so that all messages are queued."""
    name = f"burst-{interface}"
    conversation = await client.create(
        play(ScriptedReply(text="One.", gate=Gate(name=name)), FINE, at_end="repeat")
    )
    runs = [await send(conversation, f"{n}") for n in range(50)]
    await client.event("run.queued", run_id=runs[-1])
    model.open_gate(name)
    await client.finished(runs[-1])

    assert started(client, conversation) == runs
    queued = client.events(conversation, "run.queued")
    assert [event["run_id"] for event in queued] == runs[1:]
    assert [event["data"]["position"] for event in queued] == list(range(1, 50))


async def test_a_message_that_steers_a_run_reaches_it_before_a_later_message(
    client: Client, play: Play, model: ScriptedModel
) -> None:
    """P19: twenty messages that steer, each before the next one, and a message after them."""
    held = ScriptedReply(text="One.", gate=Gate(name="steered"))
    conversation = await client.create(play(held, FINE, at_end="repeat"))
    first = await client.chat(conversation, "go")
    await client.event("iteration.started", run_id=first)
    steers = [f"steer {n}" for n in range(20)]
    for steer in steers:
        await client.chat(conversation, steer, mode="steer")
    last = await client.chat(conversation, "last")
    await client.event("run.queued", run_id=last)
    model.open_gate("steered")
    await client.finished(last)

    told = [event["data"] for event in client.events(conversation, "message.completed")]
    assert [data["content"] for data in told if data["role"] == "user"] == steers
    assert started(client, conversation) == [first, last]


async def test_a_decision_counts_after_the_message_that_steered_before_it(client: Client, play: Play) -> None:
    """P19: the run continues with the approved call, and its next request to the model has the message."""
    for _ in range(20):
        conversation = await client.create(play(bash("echo done"), FINE, at_end="repeat"))
        run = await client.chat(conversation, "go")
        asked = await client.approval_request(run)
        await client.chat(conversation, "And then?", mode="steer")
        await client.decide(asked["approval_id"])
        await client.finished(run)

        told = client.events(conversation, "message.completed")
        (steered,) = [event["seq"] for event in told[1:] if event["data"]["role"] == "user"]
        _, second, *_ = client.events(conversation, "iteration.started")
        assert steered < second["seq"]


async def test_the_queue_of_a_conversation_is_bounded_and_ends_with_it(
    client: Client, play: Play, http: httpx.AsyncClient
) -> None:
    """P19: the refusal names the limit and a time, and one commit ends all queued runs."""
    held = ScriptedReply(text="Never.", gate=Gate(name="never"))
    conversation = await client.create(play(held, at_end="repeat"))
    runs = [await client.chat(conversation, f"{n}") for n in range(LIMIT + 1)]
    await client.event("run.queued", run_id=runs[-1])
    refused = await client.request("chat.send", conversation_id=conversation, content="one too many")
    response = await http.post(f"/context/conversations/{conversation}/runs", json={"content": "again"})
    (await http.delete(f"/context/conversations/{conversation}")).raise_for_status()
    for run in runs:
        assert (await client.finished(run))["status"] == "cancelled"

    assert (refused["type"], refused["code"]) == ("error", "rate_limited"), refused
    assert f"the limit of a conversation is {LIMIT}" in refused["message"]
    assert refused["retry_after_s"] >= 1
    assert (response.status_code, "retry-after" in response.headers) == (429, True)
    ended = client.events(conversation, "run.finished")
    assert len({event["ts"] for event in ended if event["run_id"] in runs[1:]}) == 1
    assert started(client, conversation) == runs[:1]


@pytest.mark.asyncio(loop_scope="session")
async def test_a_burst_keeps_its_order_with_one_agent(stage: Stage) -> None:
    """P19: the case that showed the fault, positions 2 to 4 were swapped."""
    async with stage.connected() as client:
        for _ in range(10):
            conversation = await stage.conversation(client, FINE)
            runs = [await client.chat(conversation, f"{n}") for n in range(5)]
            await client.finished(runs[-1])
            assert started(client, conversation) == runs


def started(client: Client, conversation: str) -> list[str]:
    return [event["run_id"] for event in client.events(conversation, "run.started")]
