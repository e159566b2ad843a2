"""Cancels: in every state, twice, during completion; all processes of a cancelled call end (P7)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from tests.scenarios.conftest import Play, until
from tests.scenarios.test_approvals import bash
from tests.support.client import Client
from tests.support.scripted_models import Gate, ScriptedCall, ScriptedReply
from tests.support.system import ScriptedModel, System

pytestmark = pytest.mark.timeout(120)

LOOK = ScriptedReply(tool_calls=(ScriptedCall(name="read_file", arguments={"path": "none"}),))
Reach = Callable[[Client, str, str], Awaitable[None]]


async def _requested(client: Client, conversation: str, run_id: str) -> None:
    await client.event("iteration.started", run_id=run_id)


async def _streaming(client: Client, conversation: str, run_id: str) -> None:
    await client.wait_for(lambda frame: frame["type"] == "message.delta" and frame["run_id"] == run_id)


async def _awaiting_approval(client: Client, conversation: str, run_id: str) -> None:
    await client.approval_request(run_id)


async def _in_a_tool(client: Client, conversation: str, run_id: str) -> None:
    await client.approve(run_id)
    await client.event("tool_call.started", run_id=run_id)


async def _between(client: Client, conversation: str, run_id: str) -> None:
    await client.event("tool_call.completed", run_id=run_id)


HELD = ScriptedReply(text="never said", gate=Gate(name="never"))
CUT = ScriptedReply(text="never said to its end", gate=Gate(name="never", after_events=3))
STATES: dict[str, tuple[tuple[ScriptedReply, ...], Reach]] = {
    "before the model writes": ((HELD,), _requested),
    "while the model writes": ((CUT,), _streaming),
    "while a user decides": ((bash("true"), HELD), _awaiting_approval),
    "while a tool runs": ((bash("sleep 300"), HELD), _in_a_tool),
    "between two iterations": ((LOOK, HELD), _between),
}


@pytest.mark.parametrize("state", sorted(STATES))
async def test_a_run_is_cancelled_once_in_every_state(client: Client, play: Play, state: str) -> None:
    """P7, A15: one terminal event, one result per call, and the next message gets a reply."""
    replies, reach = STATES[state]
    conversation = await client.create(play(*replies, ScriptedReply(text="Next."), at_end="repeat"))
    run_id = await client.chat(conversation, "go")
    await reach(client, conversation, run_id)

    acks = [await client.request("run.cancel", run_id=run_id, reason="enough") for _ in range(2)]
    outcome = await client.finished(run_id)

    assert [ack["type"] for ack in acks] == ["ack", "ack"]
    assert (outcome["status"], outcome["error"]["code"]) == ("cancelled", "cancelled")
    assert len(client.events(conversation, "run.finished")) == 1
    requested = [
        event["data"]["tool_call_id"] for event in client.events(conversation, "tool_call.requested")
    ]
    done = [event["data"]["tool_call_id"] for event in client.events(conversation, "tool_call.completed")]
    assert done == requested


async def test_a_queued_run_is_cancelled_and_its_neighbours_continue(
    client: Client, play: Play, model: ScriptedModel
) -> None:
    """P7, A15: it never starts; the runs before and after it complete."""
    name = play(ScriptedReply(text="One.", gate=Gate(name="queued")), ScriptedReply(text="Three."))
    conversation = await client.create(name)
    first, second, third = [await client.chat(conversation, text) for text in ("one", "two", "three")]
    await client.event("run.queued", run_id=third)

    for _ in range(2):
        await client.request("run.cancel", run_id=second)
    cancelled = await client.finished(second)
    model.open_gate("queued")
    outcomes = [await client.finished(run) for run in (first, third)]

    assert cancelled["status"] == "cancelled"
    assert [outcome["content"] for outcome in outcomes] == ["One.", "Three."]
    assert [e["run_id"] for e in client.events(conversation, "run.started")] == [first, third]


async def test_simultaneous_cancel_and_completion_give_one_terminal_event(client: Client, play: Play) -> None:
    """P1, P7, A16: twenty runs that complete at the moment of their cancel."""
    conversation = await client.create(play(ScriptedReply(text="Fine."), at_end="repeat"))

    for _ in range(20):
        run_id = await client.chat(conversation, "go")
        ack = await client.request("run.cancel", run_id=run_id)
        outcome = await client.finished(run_id)
        assert ack["type"] == "ack"
        assert outcome["status"] in ("completed", "cancelled")

    ended = [event["run_id"] for event in client.events(conversation, "run.finished")]
    assert len(ended) == len(set(ended)) == 20


STUBBORN = {
    "ignores TERM": "trap '' TERM INT HUP; while :; do sleep {mark}; done",
    "leaves its session": "setsid sleep {mark} & setsid setsid sleep {mark} & wait",
    "reads what never comes": "mkfifo pipe; (exec -a x sleep {mark}) & cat pipe",
    "forks": "f() {{ sleep {mark} & f | f & }}; f; wait",
}


@pytest.mark.parametrize("kind", sorted(STUBBORN))
async def test_all_processes_of_a_cancelled_command_end(
    system: System, client: Client, play: Play, kind: str
) -> None:
    """P7: no process of the command is left, however it tries to stay."""
    mark = f"{4000 + sorted(STUBBORN).index(kind)}.5"
    conversation = await client.create(
        play(bash(STUBBORN[kind].format(mark=mark)), ScriptedReply(text="Next."))
    )
    run_id = await client.chat(conversation, "go")
    await client.approve(run_id)
    await until(lambda: system.service_pids(mark))

    await client.request("run.cancel", run_id=run_id)
    outcome = await client.finished(run_id)
    await until(lambda: not system.service_pids(mark))

    assert outcome["status"] == "cancelled"
    assert (await client.run(conversation, "again"))["status"] == "completed"
