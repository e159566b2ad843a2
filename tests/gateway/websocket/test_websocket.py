from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.gateway.conftest import Agent, GatewayFactory, Served, Socket, key_of
from tests.support.timeouts import WAIT_TIMEOUT_S, deadline
from websockets.exceptions import ConnectionClosed, InvalidStatus

from banksman.bus.jetstream import last_message
from banksman.bus.names import RUNS
from banksman.contracts import subjects
from banksman.contracts.events import CancelRequested, MessageCompleted, RunQueued
from banksman.contracts.ids import new_id
from banksman.contracts.live_output import ModelWaiting


async def _closed(socket: Any) -> int | None:
    """Return the close code of the server."""
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        try:
            while True:
                await socket.recv()
        except ConnectionClosed as closed:
            return closed.rcvd.code if closed.rcvd else None


async def test_a_message_is_acknowledged_once_its_start_is_stored(gateway: Served, agent: Agent) -> None:
    """R108"""
    async with gateway.socket() as socket:
        conversation = await socket.create(title="A title")
        ack = await socket.request("chat.send", conversation_id=conversation, content="hi")
        start = await agent.started(conversation)
    assert (start.run_id, start.message_id) == (ack["run_id"], ack["message_id"])
    assert start.content == "hi"
    assert (start.settings.model, start.settings.tools.enabled) == ("demo:demo", True)


async def test_the_creator_of_a_conversation_sees_its_events_without_subscribing(
    gateway: Served, agent: Agent
) -> None:
    async with gateway.socket() as socket:
        conversation = await socket.create(detail="steps")
        await socket.request("chat.send", conversation_id=conversation, content="hi")
        start = await agent.started(conversation)
        await agent.begin(start)
        await agent.finish(start)
        finished = await socket.until_type("run.finished")
    assert [(frame["seq"], frame["prev_seq"], frame["type"]) for frame in socket.events] == [
        (1, 0, "run.started"),
        (2, 1, "iteration.started"),
        (3, 2, "message.completed"),
        (4, 3, "run.finished"),
    ]
    assert finished["data"]["content"] == "Hello."
    assert "for the vendor only" not in json.dumps(socket.frames)


async def test_a_repeated_request_gets_the_same_reply(gateway: Served) -> None:
    async with gateway.socket() as socket, gateway.socket() as again:
        conversation = await socket.create()
        frame = {"id": new_id("f"), "conversation_id": conversation, "content": "hi"}
        first = await socket.request("chat.send", **frame)
        assert await again.request("chat.send", **frame) == first
        refused = await again.request("chat.send", **(frame | {"content": "something else"}))
    assert (refused["type"], refused["code"]) == ("error", "conflict")


async def test_final_detail_omits_events_and_names_the_previous_sequence(
    gateway: Served, agent: Agent
) -> None:
    async with gateway.socket() as socket:
        conversation = await socket.create()
        await socket.request("chat.send", conversation_id=conversation, content="hi")
        start = await agent.started(conversation)
        await agent.begin(start)
        await agent.finish(start)
        await socket.until_type("run.finished")
    assert [(frame["seq"], frame["prev_seq"]) for frame in socket.events] == [(1, 0), (3, 1), (4, 3)]


async def test_a_subscriber_receives_stored_events_and_then_new_ones(gateway: Served, agent: Agent) -> None:
    async with gateway.socket() as writer, gateway.socket() as reader:
        conversation = await writer.create()
        await writer.request("chat.send", conversation_id=conversation, content="hi")
        start = await agent.started(conversation)
        await agent.begin(start)
        head = await reader.request("subscribe", conversation_id=conversation, after_seq=0, detail="full")
        done = await reader.until_type("replay.done")
        replayed = [frame["seq"] for frame in reader.events]
        await agent.finish(start)
        await reader.until_type("run.finished")
    assert (head["head_seq"], head["oldest_seq"]) == (2, 1)
    assert head["active_run"] == {"run_id": start.run_id, "status": "running"}
    assert (replayed, done["seq"]) == ([1, 2], 2)
    assert [frame["seq"] for frame in reader.events] == [1, 2, 3, 4]


async def test_a_subscription_may_begin_with_the_newest_runs(gateway: Served, agent: Agent) -> None:
    """The earlier events are read in pages, which end at the number that the subscription begins after."""
    async with gateway.socket() as writer:
        conversation = await writer.create(detail="steps")
        for _ in range(3):
            await writer.request("chat.send", conversation_id=conversation, content="hi")
            start = await agent.started(conversation)
            await agent.begin(start)
            await agent.finish(start)
            await writer.until_type("run.finished")
    wanted = {"conversation_id": conversation, "after_seq": 0, "detail": "steps"}
    async with gateway.socket() as reader:
        head = await reader.request("subscribe", **wanted, newest_runs=2)
        await reader.until_type("replay.done")
        newest = [(frame["seq"], frame["prev_seq"]) for frame in reader.events]
        more = await reader.request("subscribe", **wanted, newest_runs=3)
        later = await reader.request("subscribe", **(wanted | {"after_seq": 9}), newest_runs=2)
        usual = await reader.request("subscribe", **wanted)
    async with gateway.http as http:
        path = f"/context/conversations/{conversation}/events"
        pages = [
            (await http.get(path, params={"limit": 3, "after_seq": after})).json() for after in (0, 3, 9)
        ]
        final = (await http.get(path, params={"limit": 3, "detail": "final"})).json()
    assert (head["after_seq"], head["head_seq"], newest) == (4, 12, [(n, n - 1) for n in range(5, 13)])
    assert (more["after_seq"], later["after_seq"]) == (0, 9)
    assert "after_seq" not in usual
    assert [([frame["seq"] for frame in page["items"]], page["next"]) for page in pages] == [
        ([1, 2, 3], 3),
        ([4, 5, 6], 6),
        ([10, 11, 12], None),
    ]
    assert ([frame["seq"] for frame in final["items"]], final["next"]) == ([1, 3], 3)


async def test_the_newest_runs_include_the_runs_that_overlap_them(gateway: Served, agent: Agent) -> None:
    """No run of the replay has an event before it: the client shows it completely."""
    async with gateway.socket() as socket:
        conversation = await socket.create()
        await socket.request("chat.send", conversation_id=conversation, content="ended")
        start = await agent.started(conversation)
        await agent.begin(start)
        await agent.finish(start)
        await socket.request("chat.send", conversation_id=conversation, content="runs")
        running = await agent.started(conversation)
        await agent.begin(running)
        await socket.request("chat.send", conversation_id=conversation, content="waits")
        waiting = await agent.started(conversation)
        queued = {"message_id": waiting.message_id, "message": waiting.content, "settings": waiting.settings}
        await agent.commit(conversation, waiting.run_id, RunQueued(position=1, **queued))
        wanted = {"conversation_id": conversation, "after_seq": 0, "newest_runs": 1}
        while_open = await socket.request("subscribe", **wanted)
        await agent.finish(running)
        ended = await socket.request("subscribe", **wanted)
    assert (while_open["after_seq"], while_open["active_run"]["run_id"]) == (4, running.run_id)
    assert (ended["after_seq"], ended["active_run"]["run_id"]) == (4, waiting.run_id)


async def test_a_client_resumes_after_the_last_event_it_has(
    gateway: Served, agent: Agent, tenant: str
) -> None:
    """Interfaces, section 1: a websocket that disconnects cancels nothing."""
    async with gateway.socket() as socket:
        conversation = await socket.create()
        await socket.request("chat.send", conversation_id=conversation, content="hi")
        start = await agent.started(conversation)
        await agent.begin(start)
    await agent.finish(start)
    resume = {
        "conversation_id": conversation,
        "after_seq": 2,
        "log_epoch": agent.log_epoch,
        "detail": "steps",
    }
    stale = {"conversation_id": conversation, "after_seq": 2, "log_epoch": "another"}
    async with gateway.socket(resume=[resume]) as socket:
        await socket.until_type("replay.done")
        assert socket.welcome["resumed"] == [conversation]
        assert [(frame["seq"], frame["prev_seq"]) for frame in socket.events] == [(3, 2), (4, 3)]
    assert await last_message(gateway.bus, RUNS, subjects.run_signal(tenant, conversation)) is None
    async with gateway.socket(resume=[stale]) as socket:
        assert [lost["conversation_id"] for lost in socket.welcome["not_resumed"]] == [conversation]


@pytest.mark.parametrize("position", [{"after_seq": 99}, {"after_seq": 1, "log_epoch": "another"}])
async def test_an_unavailable_position_requires_a_resync(
    gateway: Served, agent: Agent, position: dict[str, Any]
) -> None:
    async with gateway.socket() as socket:
        conversation = await socket.create()
        await socket.request("chat.send", conversation_id=conversation, content="hi")
        await agent.begin(await agent.started(conversation))
        response = await socket.request("subscribe", conversation_id=conversation, **position)
    assert (response["type"], response["oldest_seq"]) == ("resync_required", 1)


async def test_a_pending_approval_is_sent_to_new_subscribers_and_the_first_decision_wins(
    gateway: Served, agent: Agent
) -> None:
    """R12, R110"""
    async with gateway.socket() as first, gateway.socket() as second:
        conversation = await first.create()
        await first.request("chat.send", conversation_id=conversation, content="list")
        start = await agent.started(conversation)
        await agent.begin(start)
        request = await agent.request_approval(start)
        requested = await first.until_type("approval.requested")
        head = await second.request("subscribe", conversation_id=conversation, after_seq=0)
        reply = {"approval_id": request.approval_id, "id": new_id("f")}
        won = await first.request("approval.reply", all="approve", **reply)
        again = await first.request("approval.reply", all="approve", **reply)
        lost = await second.request("approval.reply", approval_id=request.approval_id, all="reject")
    assert requested["data"]["items"][0]["arguments"] == {"command": "ls"}
    assert head["active_run"]["status"] == "awaiting_approval"
    assert [pending["run_id"] for pending in head["pending_approvals"]] == [start.run_id]
    assert head["pending_approvals"][0]["items"] == requested["data"]["items"]
    assert (won["resolved_by"], won["already_resolved"], won["outcome"]) == ("local", False, "approved")
    assert again == won
    assert (lost["already_resolved"], lost["outcome"]) == (True, "approved")


async def test_a_decision_on_other_calls_than_the_request_lists_is_refused(
    gateway: Served, agent: Agent
) -> None:
    """A decision names the digests of the calls that were shown; those of another request have no effect."""
    async with gateway.socket() as socket:
        conversation = await socket.create()
        await socket.request("chat.send", conversation_id=conversation, content="list")
        request = await agent.request_approval(await agent.started(conversation))
        decision = {"approval_id": request.approval_id, "all": "approve"}
        refused = await socket.request("approval.reply", **decision, digests=["0" * 64])
        accepted = await socket.request(
            "approval.reply", **decision, digests=[item.digest for item in request.items]
        )
    assert (refused["type"], refused["code"]) == ("error", "conflict")
    assert (accepted["already_resolved"], accepted["outcome"]) == (False, "approved")


async def test_edited_arguments_are_checked_against_the_tools_schema(gateway: Served, agent: Agent) -> None:
    async with gateway.socket() as socket:
        conversation = await socket.create()
        await socket.request("chat.send", conversation_id=conversation, content="list")
        request = await agent.request_approval(await agent.started(conversation))
        call = request.items[0].tool_call_id

        async def decide(arguments: dict[str, Any]) -> dict[str, Any]:
            decision = {"tool_call_id": call, "decision": "approve", "arguments": arguments}
            return await socket.request(
                "approval.reply", approval_id=request.approval_id, decisions=[decision]
            )

        refused = await decide({"command": 5})
        accepted = await decide({"command": "ls -l"})
    assert (refused["code"], refused["details"]["field"]) == ("bad_request", "decisions.arguments.command")
    assert accepted["outcome"] == "approved"


async def test_a_decision_waits_for_its_request_to_be_stored_and_is_then_refused(
    gateway: Served, agent: Agent
) -> None:
    async with gateway.socket() as socket:
        conversation = await socket.create()
        await socket.request("chat.send", conversation_id=conversation, content="hi")
        request = await agent.log_approval_request(await agent.started(conversation))
        sent = await socket.send("approval.reply", approval_id=request.approval_id, all="approve")
        assert (await socket.request("ping", t=1))["t"] == 1
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while True:
                frame = json.loads(await socket.connection.recv())
                if frame.get("reply_to") == sent:
                    break
    assert (frame["code"], frame["retryable"]) == ("not_ready", True)


async def test_cancelling_a_run_stores_a_signal(gateway: Served, agent: Agent, tenant: str) -> None:
    async with gateway.socket() as socket:
        conversation = await socket.create()
        ack = await socket.request("chat.send", conversation_id=conversation, content="hi")
        cancelled = await socket.request("run.cancel", run_id=ack["run_id"], reason="enough")
        message = await last_message(gateway.bus, RUNS, subjects.run_signal(tenant, conversation))
    assert cancelled["type"] == "ack"
    assert message is not None
    signal = json.loads(message.data)
    assert (signal["type"], signal["run_id"], signal["reason"]) == ("cancel", ack["run_id"], "enough")


async def test_a_cancel_of_an_unknown_run_is_refused_and_stores_nothing(gateway: Served, tenant: str) -> None:
    async with gateway.socket() as socket:
        conversation = await socket.create()
        unknown = await socket.request("run.cancel", run_id=f"{conversation}-aaaaaaaaaaaa")
        malformed = await socket.request("run.cancel", run_id=f"{conversation}-abc")
        stored = await last_message(gateway.bus, RUNS, subjects.run_signal(tenant, conversation))
    assert (unknown["code"], malformed["code"]) == ("not_found", "bad_request")
    assert malformed["details"]["field"] == "run_id"
    assert stored is None


async def test_a_stored_cancel_of_an_unknown_run_leaves_its_conversation_idle(
    gateway: Served, agent: Agent
) -> None:
    async with gateway.socket() as socket, gateway.http as http:
        conversation = await socket.create()
        await agent.commit(conversation, f"{conversation}-aaaaaaaaaaaa", CancelRequested(by="user"))
        subscribed = await socket.request("subscribe", conversation_id=conversation)
        read = (await http.get(f"/context/conversations/{conversation}")).json()
        runs = (await http.get(f"/context/conversations/{conversation}/runs")).json()["items"]
    assert "active_run" not in subscribed
    assert (read["status"], runs) == ("idle", [])


async def test_a_run_that_was_cancelled_before_its_start_is_cancelling_from_its_start(
    gateway: Served, agent: Agent
) -> None:
    async with gateway.socket() as socket, gateway.http as http:
        conversation = await socket.create()
        await socket.request("chat.send", conversation_id=conversation, content="hi")
        start = await agent.started(conversation)
        await agent.commit(conversation, start.run_id, CancelRequested(by="user"))
        repeated = await socket.request("run.cancel", run_id=start.run_id)
        await agent.begin(start)
        subscribed = await socket.request("subscribe", conversation_id=conversation)
        read = (await http.get(f"/context/runs/{start.run_id}")).json()
    assert repeated["type"] == "ack"
    assert subscribed["active_run"] == {"run_id": start.run_id, "status": "cancelling"}
    assert read["status"] == "cancelling"


async def test_a_steering_message_is_sent_to_the_open_run(gateway: Served, agent: Agent, tenant: str) -> None:
    async with gateway.socket() as socket:
        conversation = await socket.create()
        await socket.request("chat.send", conversation_id=conversation, content="hi")
        start = await agent.started(conversation)
        await agent.begin(start)
        ack = await socket.request("chat.send", conversation_id=conversation, content="rather", mode="steer")
        message = await last_message(gateway.bus, RUNS, subjects.run_signal(tenant, conversation))
    assert ack["run_id"] == start.run_id
    assert message is not None
    assert json.loads(message.data)["message_id"] == ack["message_id"]


@pytest.mark.parametrize(
    ("text", "code", "field"),
    [
        ("{", "bad_request", "frame"),
        ("[]", "bad_request", "frame"),
        ('{"id": "1"}', "bad_request", "type"),
        ('{"type": "fly", "id": "1"}', "unknown_type", None),
        ('{"type": "chat.send", "id": "1", "content": "x"}', "bad_request", "conversation_id"),
        ('{"type": "ping", "id": "1", "id": "2"}', "bad_request", "frame"),
        (
            '{"type": "subscribe", "id": "1", "conversation_id": "c", "after_seq": "1"}',
            "bad_request",
            "after_seq",
        ),
        ('{"type": "ping", "id": "1", "t": NaN}', "bad_request", "frame"),
    ],
)
async def test_an_invalid_frame_gets_an_error_and_the_connection_stays_open(
    gateway: Served, text: str, code: str, field: str | None
) -> None:
    async with gateway.socket() as socket:
        await socket.connection.send(text)
        error = await socket.until_type("error")
        assert (error["code"], (error.get("details") or {}).get("field")) == (code, field)
        assert (await socket.request("ping", t="still here"))["t"] == "still here"


async def test_a_binary_frame_closes_the_connection(gateway: Served) -> None:
    async with gateway.socket() as socket:
        await socket.connection.send(b"{}")
        assert await _closed(socket.connection) == 4400


async def test_invalid_utf8_closes_the_connection(gateway: Served) -> None:
    async with gateway.socket() as socket:
        await socket.connection.send(b"\xff\xfe", text=True)
        assert await _closed(socket.connection) == 1007


async def test_an_oversized_frame_closes_the_connection(gateway: Served) -> None:
    async with gateway.socket() as socket:
        await socket.connection.send("x" * (300 * 1024))
        assert await _closed(socket.connection) == 1009


async def test_a_second_hello_closes_the_connection(gateway: Served) -> None:
    async with gateway.socket() as socket:
        await socket.send("hello")
        assert await _closed(socket.connection) == 4409


async def test_a_connection_without_hello_is_closed(start_gateway: GatewayFactory) -> None:
    async with start_gateway(hello_timeout_s=0.1) as gateway, gateway.raw() as connection:
        await connection.send('{"type": "subscribe", "id": "1", "conversation_id": "c"}')
        refused = json.loads(await connection.recv())
        assert (refused["type"], refused["reply_to"]) == ("error", "1")
        assert await _closed(connection) == 4408


async def test_a_message_that_is_not_finished_in_time_closes_the_connection(
    start_gateway: GatewayFactory,
) -> None:
    """The client is alive: it responds to pings, and sends further fragments."""
    async with start_gateway(message_timeout_s=0.3) as gateway, gateway.raw() as connection:

        async def endless() -> AsyncIterator[str]:
            while True:
                yield "x"
                await (await connection.ping())

        sending = asyncio.create_task(connection.send(endless()))
        assert await _closed(connection) == 4408
        with pytest.raises(ConnectionClosed):
            await sending


async def test_a_message_in_many_fragments_is_one_message(gateway: Served) -> None:
    async with gateway.socket() as socket:
        text = json.dumps({"type": "ping", "id": "slow", "t": 5}) + " " * 3_000
        await socket.connection.send(iter(text))
        pong = await socket.until(lambda frame: frame.get("reply_to") == "slow")
    assert pong["t"] == 5


async def test_unfinished_messages_of_all_clients_are_bounded(start_gateway: GatewayFactory) -> None:
    """Those that began first are refused; a client that finishes its messages is not affected."""
    part = "x" * 200 * 1024
    async with start_gateway(max_unfinished_bytes=1024 * 1024) as gateway, gateway.socket() as honest:
        release = asyncio.Event()

        async def held_back() -> int | None:
            async def parts() -> AsyncIterator[str]:
                yield part
                await release.wait()
                yield "x"

            async with gateway.raw() as connection:
                sending = asyncio.create_task(connection.send(parts()))
                with contextlib.suppress(ConnectionClosed):
                    async for _ in connection:
                        pass
                release.set()
                with contextlib.suppress(ConnectionClosed):
                    await sending
                return connection.close_code

        async with asyncio.TaskGroup() as group:
            attackers = [group.create_task(held_back()) for _ in range(12)]
            done, waiting = await asyncio.wait(
                attackers, timeout=WAIT_TIMEOUT_S, return_when="FIRST_COMPLETED"
            )
            assert {task.result() for task in done} == {4429}
            assert waiting
            assert (await honest.request("ping", t=1))["t"] == 1
            for task in attackers:
                task.cancel()


async def test_a_user_has_a_limited_number_of_websockets(start_gateway: GatewayFactory) -> None:
    async with start_gateway(max_sockets_per_user=2) as gateway:
        async with gateway.socket(), gateway.socket(), gateway.raw() as third:
            await third.send(json.dumps({"type": "hello", "id": "h"}))
            assert await _closed(third) == 4429
        async with gateway.socket(), gateway.socket() as again:
            assert again.welcome["type"] == "welcome"


async def test_only_unknown_subprotocols_are_refused(gateway: Served) -> None:
    async with gateway.raw(subprotocols=["banksman.v9"]) as connection:
        assert await _closed(connection) == 4426
    async with gateway.raw(subprotocols=None) as connection:
        socket = Socket(connection)
        assert (await socket.request("hello"))["protocol"] == "banksman.v1"


async def test_frames_are_not_compressed_even_if_a_client_offers_it(gateway: Served) -> None:
    """An idle connection with permessage-deflate takes five times the memory."""
    async with gateway.raw(compression="deflate") as connection:
        assert connection.protocol.extensions == []


async def test_a_client_above_its_rate_is_warned_and_then_closed(gateway: Served) -> None:
    async with gateway.socket() as socket:
        for number in range(300):
            await socket.connection.send(json.dumps({"type": "ping", "t": number}))
        codes: set[str] = set()
        async with deadline("the gateway did not close the connection"):
            with pytest.raises(ConnectionClosed) as closed:
                while True:
                    frame = json.loads(await socket.connection.recv())
                    codes.add(frame.get("code", frame["type"]))
    assert codes == {"pong", "rate_limited"}
    assert closed.value.rcvd and closed.value.rcvd.code == 4429


async def test_a_client_that_does_not_read_is_closed_and_resumes(gateway: Served, agent: Agent) -> None:
    async with gateway.socket() as writer, gateway.raw(max_queue=1) as connection:
        slow = Socket(connection)
        await slow.request("hello")
        conversation = await writer.create()
        await writer.request("unsubscribe", conversation_id=conversation)
        await slow.request("subscribe", conversation_id=conversation)
        for _ in range(80):
            reply = MessageCompleted(message_id=new_id("m"), role="assistant", content="x" * 250_000)
            await agent.commit(conversation, f"{conversation}-0123456789ab", reply)
        with pytest.raises(ConnectionClosed) as closed:
            await slow.until_type("nothing of that type")
        assert closed.value.rcvd and closed.value.rcvd.code == 4508
        last = slow.events[-1]["seq"]
        await writer.request("subscribe", conversation_id=conversation, after_seq=last)
        await writer.until_type("replay.done")
    assert 1 < last < 80
    assert [frame["seq"] for frame in writer.events] == list(range(last + 1, 81))


async def test_deltas_reach_subscribers_of_their_detail(gateway: Served, agent: Agent, tenant: str) -> None:
    async with gateway.socket() as final, gateway.socket() as full:
        conversation = await final.create()
        await full.request("subscribe", conversation_id=conversation, after_seq=0, detail="full")
        await full.until_type("replay.done")
        await final.request("chat.send", conversation_id=conversation, content="hi")
        start = await agent.started(conversation)
        await agent.begin(start)
        for piece in (
            {"kind": "reasoning", "offset": 0, "text": "hm"},
            {"kind": "message", "offset": 0, "text": "Two "},
            {"kind": "message", "offset": 4, "text": "parts."},
        ):
            delta = {"conversation_id": conversation, "run_id": start.run_id, "message_id": "m1", **piece}
            await gateway.bus.publish(subjects.delta(tenant, conversation), json.dumps(delta).encode())
        await full.until(lambda frame: frame.get("data", {}).get("text", "").endswith("parts."))
        await final.until(lambda frame: frame.get("data", {}).get("text", "").endswith("parts."))
    written = [frame for frame in full.frames if frame["type"].endswith(".delta")]
    assert "".join(frame["data"]["text"] for frame in written) == "hmTwo parts."
    assert all("seq" not in frame and frame["run_id"] == start.run_id for frame in written)
    assert {frame["type"] for frame in final.frames if "delta" in frame["type"]} == {"message.delta"}


async def test_subscribers_learn_that_the_model_request_is_repeated_after_a_pause(
    gateway: Served, agent: Agent, tenant: str
) -> None:
    async with gateway.socket() as socket:
        conversation = await socket.create(detail="final")
        await socket.request("chat.send", conversation_id=conversation, content="hi")
        start = await agent.started(conversation)
        await agent.begin(start)
        await socket.until_type("run.started")
        data = {
            "model": "openai:gpt-5",
            "reason": "overloaded",
            "error": "503 Service Unavailable",
            "attempt": 3,
            "next_attempt_s": 12.0,
        }
        ids = {"conversation_id": conversation, "run_id": start.run_id}
        notice = ModelWaiting.model_validate({**ids, "message_id": "m1", "pause": data})
        await gateway.bus.publish(subjects.delta(tenant, conversation), notice.model_dump_json().encode())
        frame = await socket.until_type("model.waiting")
    assert (frame["data"], frame["run_id"]) == (data, start.run_id)
    assert "seq" not in frame


async def test_all_deltas_of_a_message_arrive_before_the_event_that_completes_it(
    gateway: Served, agent: Agent, tenant: str
) -> None:
    async with gateway.socket() as socket:
        conversation = await socket.create()
        await socket.request("chat.send", conversation_id=conversation, content="hi")
        start = await agent.started(conversation)
        await agent.begin(start)
        await socket.until_type("run.started")
        text = "0123456789" * 50
        ids = {"conversation_id": conversation, "run_id": start.run_id, "message_id": "m1"}
        for offset in range(len(text)):
            delta = ids | {"kind": "message", "offset": offset, "text": text[offset]}
            await gateway.bus.publish(subjects.delta(tenant, conversation), json.dumps(delta).encode())
        completed = MessageCompleted(message_id="m1", role="assistant", content=text, finish_reason="stop")
        await agent.commit(conversation, start.run_id, completed)
        await socket.until_type("message.completed")
    deltas = [frame["data"]["text"] for frame in socket.frames if frame["type"] == "message.delta"]
    assert "".join(deltas) == text


async def test_a_wrong_token_closes_after_hello_and_is_401_at_the_upgrade(guarded: Served) -> None:
    async with guarded.raw() as connection:
        await connection.send(json.dumps({"type": "hello", "id": "1", "token": "wrong"}))
        assert await _closed(connection) == 4401
    async with guarded.raw() as connection:
        await connection.send(json.dumps({"type": "hello", "id": "1"}))
        assert await _closed(connection) == 4401
    with pytest.raises(InvalidStatus) as refused:
        async with guarded.raw(additional_headers={"authorization": "Bearer wrong"}):
            pass
    assert refused.value.response.status_code == 401


async def test_a_websocket_token_is_valid_for_its_own_tenant_only(guarded: Served) -> None:
    async with guarded.socket("alice") as alice, guarded.socket("bob") as bob:
        assert (alice.welcome["user"], bob.welcome["user"]) == ("alice", "bob")
        conversation = await alice.create()
        for request in (
            {"type": "subscribe", "conversation_id": conversation},
            {"type": "chat.send", "conversation_id": conversation, "content": "x"},
            {"type": "run.cancel", "run_id": f"{conversation}-0123456789ab"},
        ):
            assert (await bob.request(**request))["code"] == "not_found"


async def test_a_key_without_the_right_cannot_approve(guarded: Served) -> None:
    async with guarded.socket("reader") as reader:
        response = await reader.request("approval.reply", approval_id=new_id("a"), all="approve")
    assert response["code"] == "forbidden"


async def test_a_page_of_another_origin_is_refused_before_the_upgrade(start_gateway: GatewayFactory) -> None:
    async with start_gateway(allowed_origins=("https://chat.example.org",)) as gateway:
        with pytest.raises(InvalidStatus) as refused:
            async with gateway.raw(origin="https://evil.example.org"):
                pass
        assert refused.value.response.status_code == 403
        for origin in ("https://chat.example.org", gateway.url):
            async with gateway.raw(origin=origin) as connection:
                assert (await Socket(connection).request("hello"))["type"] == "welcome"


async def test_draining_notifies_clients_and_closes(start_gateway: GatewayFactory) -> None:
    async with AsyncExitStack() as clients:
        async with start_gateway() as gateway:
            socket = await clients.enter_async_context(gateway.socket())
        assert (await socket.until_type("server.draining"))["reconnect_after_s"] > 0
        assert await _closed(socket.connection) == 1012


async def test_welcome_precedes_replies_to_frames_sent_with_hello(gateway: Served) -> None:
    async with gateway.raw() as connection:
        for frame in ({"type": "hello", "id": "1"}, {"type": "conversation.create", "id": new_id("f")}):
            await connection.send(json.dumps(frame))
        async with deadline("two replies did not arrive"):
            types = [json.loads(await connection.recv())["type"] for _ in range(2)]
    assert types == ["welcome", "ack"]


async def test_a_client_that_only_receives_is_closed_when_its_key_expires(
    start_gateway: GatewayFactory, tenant: str
) -> None:
    """The gateway cannot check the key on a frame, because the client sends none."""
    key = key_of("alice", tenant, expires_at=datetime.now(UTC) + timedelta(seconds=10))
    async with start_gateway(keys=(key,)) as gateway, gateway.socket("alice") as socket:
        async with asyncio.timeout(30):
            await socket.connection.wait_closed()
        assert (socket.connection.close_code, socket.connection.close_reason) == (
            4401,
            "the token has expired",
        )
