"""The messages that one run costs: exact counts, so a change that adds one is noticed.

The times of `make bench` depend on the machine, these counts do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import httpx
import pytest

from banksman.cli.state import DataDir
from banksman.contracts.ids import new_id
from banksman.sdk import ToolServer, tool
from tests.scenarios.conftest import Play
from tests.scenarios.test_tool_registry import local
from tests.support.client import Client
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import System
from tests.support.traced import Trace, traced

pytestmark = [pytest.mark.timeout(120), pytest.mark.one_server]

RUNS = 10
"""Runs whose messages are divided by their number and rounded: up to four stray messages of a kind, such as
the end of an earlier test's run, or the last run's missing end, change nothing."""
CALLS = 3
MEASUREMENTS = 3

PER_TIME = frozenset(
    {
        "$JS.API.CONSUMER.MSG.NEXT.APPROVALS",
        "$JS.API.CONSUMER.MSG.NEXT.RUNS",
        "$JS.API.CONSUMER.MSG.NEXT.TIMERS",
        "$JS.API.CONSUMER.MSG.NEXT.WORKFLOWS",
        "$KV.runners",
        "tool.cancel",
    }
)
"""Pulls that expire, leases, and probes of runners whose leases are late: their number depends on how long
the runs take."""
AGENT, RELAY, GATEWAY, SERVER = "agent", "agent relay", "gateway", "tool server"

Counts = Mapping[tuple[str, str], int]

STORED: Counts = {
    (AGENT, "conversation"): 8,
    (RELAY, "tool.started"): 3,
    (RELAY, "tool.result"): 3,
    (GATEWAY, "run.work"): 1,
    (GATEWAY, "$KV.conversations"): 1,
}
"""Writes, each of which is synced before its acknowledgement."""
READS: Counts = {}
"""Reads that the leader of a stream answers: none."""
OTHER: Counts = {
    (AGENT, "$JS.ACK.RUNS.agents"): 1,
    (AGENT, "$JS.API.STREAM.PURGE.RESULTS"): 3,
    (AGENT, "delta"): 1,
    (AGENT, "tool.call"): 3,
    (GATEWAY, "$JS.API.DIRECT.GET.EVENTS"): 1,
    (SERVER, "tool.started"): 3,
    (SERVER, "tool.result"): 3,
}
EXPECTED: Counts = {**STORED, **READS, **OTHER}
"""Messages to the broker of one run of three tool calls, by client and kind of subject."""

WATCHED: Counts = {
    (GATEWAY, "$JS.API.DIRECT.GET.EVENTS"): 3,
    (GATEWAY, "$JS.API.STREAM.MSG.GET.EVENTS"): 2,
    (GATEWAY, "$JS.API.STREAM.MSG.GET.KV_conversations"): 2,
    (GATEWAY, "$KV.conversations"): 2,
    (GATEWAY, "$KV.idempotency"): 2,
}
"""Messages whose number differs while a websocket shows the run."""

Execute = Callable[[str], Awaitable[None]]


async def test_a_run_sends_exactly_the_listed_messages_to_the_broker(
    system: System, play: Play, http: httpx.AsyncClient
) -> None:
    """A run of three trivial tool calls that a client starts over HTTP, and whose outcome it waits for."""

    async def execute(assistant: str) -> None:
        body = {"content": "Add.", "assistant": assistant}
        run = (await http.post("/v1/chat", params={"wait_s": 30}, json=body)).json()
        assert run["status"] == "completed", run

    await check(partial(messages_per_run, system, play, http, execute), EXPECTED)


async def test_a_run_that_a_client_watches_sends_exactly_the_listed_messages(
    system: System, play: Play, http: httpx.AsyncClient, client: Client
) -> None:
    """The same run, started over a websocket that receives its events and the text as the model writes it."""

    async def execute(assistant: str) -> None:
        conversation = await client.create(assistant=assistant)
        assert (await client.run(conversation, "Add."))["status"] == "completed"

    await check(partial(messages_per_run, system, play, http, execute), {**EXPECTED, **WATCHED})


async def messages_per_run(system: System, play: Play, http: httpx.AsyncClient, execute: Execute) -> Counts:
    """Return the messages of one run to the broker, without those of `PER_TIME`."""
    name = new_id("adds-")

    @tool(name=name, requires_approval=False)
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    calls = [ScriptedCall(name=name, arguments={"a": number, "b": number}) for number in range(CALLS)]
    model = play(*(ScriptedReply(tool_calls=(call,)) for call in calls), ScriptedReply(text="Added."))
    assistant = {"id": name, "model": model, "tools": {"enabled": True, "allowed_tools": [name]}}
    async with ToolServer(name, [add], nats=local(system)):
        (await http.post("/context/assistants", json=assistant)).raise_for_status()
        await execute(name)
        data = DataDir(system.data_dir)
        instance = data.read()
        assert instance is not None
        with traced(instance.processes["nats"].pid, data) as trace:
            for _ in range(RUNS):
                await execute(name)
        # After the block, which ends when the log has its last line: the launcher writes it with a delay.
        return per_run(trace)


def per_run(trace: Trace) -> Counts:
    """Return the messages of one run by client and kind of subject."""
    found: Counter[tuple[str, str]] = Counter()
    for (client, kind), number in trace.sent().items():
        if kind not in PER_TIME:
            found[SERVER if client.startswith(SERVER) else client, kind] += number
    return {key: round(number / RUNS) for key, number in sorted(found.items()) if number / RUNS >= 0.5}


async def check(measure: Callable[[], Awaitable[Counts]], expected: Counts) -> None:
    """Compare two tables; the error has a line for each kind of message whose number differs.

    On a busy machine a call that takes long is requested again, so up to three measurements are made: a
    message that the code adds is in all of them.
    """
    wrong: list[str] = []
    for _ in range(MEASUREMENTS):
        wrong = differences(await measure(), expected)
        if not wrong:
            return
    assert not wrong, "\n".join(["", *wrong])


def differences(found: Counts, expected: Counts) -> list[str]:
    """Return a line for each kind of message whose number differs.

    Reads may differ by one: a run that takes longer than a second has its owner and its gateway check once
    whether they have missed a commit, and a commit may arrive before it is read.
    """
    return [
        f"{client}: {kind}: {found.get((client, kind), 0)} instead of {expected.get((client, kind), 0)}"
        for client, kind in sorted({*found, *expected})
        if abs(found.get((client, kind), 0) - expected.get((client, kind), 0)) > (".GET." in kind)
    ]
