"""Many parked runs: agents park some of them, and the others are stored as exact copies."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.messages import Message
from banksman.bus.names import (
    APPROVAL_REPLIES,
    APPROVALS,
    EVENTS,
    FIRST_SEQ,
    LAST_SEQ,
    LOG_EPOCH,
    PREV,
    RUNS,
    SCHEDULE,
    SCHEDULE_TARGET,
    SNAPSHOT,
    TIMERS,
    api,
)
from banksman.bus.storage.log import EventLog
from banksman.contracts import subjects
from banksman.contracts.events import Commit, RunFinished
from banksman.contracts.ids import approval_id_for, new_id, run_id_for
from banksman.contracts.work import ApprovalRequest
from tests.support.chaos.fleet import Fleet
from tests.support.polling import eventually
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import ScriptedModel

TENANT = "local"
_STREAMS = (EVENTS, APPROVALS, TIMERS)
IN_FLIGHT = 512
"""Copies that are published between two checks of the stored messages."""
PARK_TIMEOUT_S = 600.0
"""Seconds until a run has parked; many runs wait for the same agents."""
PARKED_EACH = timedelta(seconds=0.05)
"""Time between the timers of two parked runs."""
ASKS = ScriptedReply(tool_calls=(ScriptedCall(name="bash", arguments={"command": "true"}),))


@dataclass(frozen=True, slots=True)
class Parked:
    """A run that waits for a user."""

    conversation_id: str
    run_id: str
    approval_id: str


@dataclass(frozen=True, slots=True)
class Continuation:
    """The times from a decision to the agent that continues the run."""

    decided_s: float
    """Seconds until the reply to the decision."""
    claimed_s: float
    """Seconds until an agent claimed the run again, by the log."""


def script(model: ScriptedModel) -> str:
    """Load a model whose every run requests an approval, and ends with the reply after it."""
    return model.play("parked", [ASKS, ScriptedReply(text="Done.")], at_end="repeat")


async def park_by_agents(fleet: Fleet, model_name: str, number: int) -> list[Parked]:
    """Start runs over HTTP, and wait until each has requested its approval."""
    limit = asyncio.Semaphore(16)
    async with httpx.AsyncClient(base_url=fleet.urls[0], timeout=60) as http:
        # One rejection must not end the run, so that a run continues after its decision.
        body = {"model": model_name, "tools": {"enabled": True, "on_reject": "feedback"}}
        assistant = (await http.post("/context/assistants", json=body)).json()["id"]

        async def park() -> Parked:
            async with limit:
                made = await http.post("/context/conversations", json={"assistant": assistant})
                conversation = made.json()["conversation_id"]
                url = f"/context/conversations/{conversation}/runs"
                run_id = (await http.post(url, json={"content": "go"})).json()["run_id"]

                async def pending() -> list[dict[str, Any]]:
                    return list((await http.get(f"/context/runs/{run_id}")).json()["pending_approvals"])

                approvals = await eventually(pending, PARK_TIMEOUT_S)
                return Parked(conversation, run_id, approvals[0]["approval_id"])

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(park()) for _ in range(number)]
    return [task.result() for task in tasks]


async def park_copies(bus: Bus, original: Parked, number: int) -> list[Parked]:
    """Store the messages of `original` with new ids: log, approval request and timer."""
    pattern = await _pattern(bus, original)
    before = await _stored(bus)
    made: list[Parked] = []
    for _ in range(number):
        copy = _new_parked()
        for message in pattern:
            await message.publish(bus, original, copy, later=len(made) * PARKED_EACH)
        made.append(copy)
        if len(made) % IN_FLIGHT == 0:
            await _settled(bus, before, len(made))
    await _settled(bus, before, len(made))
    return made


def _new_parked() -> Parked:
    conversation = new_id("c")
    run_id = run_id_for(conversation)
    return Parked(conversation, run_id, approval_id_for(run_id))


@dataclass(frozen=True, slots=True)
class _Message:
    """A message that an agent stored for a run."""

    subject: str
    payload: str
    headers: Mapping[str, str]
    due: datetime | None = None
    """The time at which a timer fires."""

    async def publish(self, bus: Bus, original: Parked, copy: Parked, *, later: timedelta) -> None:
        """Store it with the ids of `copy`, as if `copy` had parked `later` after the original."""

        def renamed(text: str) -> str:
            # The id of an approval begins with its run's id, and that one with its conversation's id.
            text = text.replace(original.approval_id, copy.approval_id)
            text = text.replace(original.run_id, copy.run_id)
            return text.replace(original.conversation_id, copy.conversation_id)

        headers = {name: renamed(value) for name, value in self.headers.items()}
        if self.due is not None:
            moment = (self.due + later).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            headers[SCHEDULE] = f"@at {moment}"
        await bus.nc.publish(renamed(self.subject), renamed(self.payload).encode(), headers=headers)


async def _pattern(bus: Bus, original: Parked) -> tuple[_Message, ...]:
    """Return the messages of a parked run, without message ids.

    The server stores message ids for ten minutes, and the copies represent runs that have waited longer.
    """
    log = await EventLog(bus).read(TENANT, original.conversation_id)
    request = await _approval_request(bus, original)
    first, last = log[0].commit, log[-1].commit
    events = tuple(event for stored in log for event in stored.commit.events)
    # Store the whole log as one commit: each further commit would need the sequence of the previous one.
    whole = last.model_copy(update={"first_seq": first.first_seq, "events": events})
    headers = {
        FIRST_SEQ: str(whole.first_seq),
        LAST_SEQ: str(whole.last_seq),
        PREV: "0",
        LOG_EPOCH: whole.log_epoch,
        SNAPSHOT: "0",
    }
    ids = request.model_dump_json(include={"tenant", "conversation_id", "approval_id"})
    fires = subjects.timer_fired("approval", TENANT, original.approval_id)
    return (
        _Message(
            subjects.conversation(TENANT, original.conversation_id),
            whole.model_dump_json(by_alias=True),
            headers,
        ),
        _Message(
            subjects.approval_request(TENANT, original.approval_id),
            request.model_dump_json(by_alias=True),
            {},
        ),
        _Message(
            subjects.timer_set("approval", TENANT, original.approval_id),
            ids,
            {SCHEDULE_TARGET: fires},
            request.expires_at,
        ),
    )


async def _approval_request(bus: Bus, parked: Parked) -> ApprovalRequest:
    subject = subjects.approval_request(TENANT, parked.approval_id)
    message = await jetstream.last_message(bus, APPROVALS, subject)
    assert message is not None
    return ApprovalRequest.model_validate_json(message.data)


async def _stored(bus: Bus) -> tuple[int, ...]:
    """Return the message counts of the three streams that hold parts of a parked run."""
    infos = [await jetstream.call(bus, api("STREAM.INFO", name)) for name in _STREAMS]
    return tuple(int(info["state"]["messages"]) for info in infos)


async def _settled(bus: Bus, before: tuple[int, ...], more: int) -> None:
    """Wait until the server has stored all published messages; it accepts a message before it stores it."""
    await bus.nc.flush(timeout=120)
    async with asyncio.timeout(120):
        while any(now < then + more for now, then in zip(await _stored(bus), before, strict=True)):
            await bus.ready()


async def held(bus: Bus) -> dict[str, int]:
    """Return the unacknowledged and undelivered messages in the broker, by consumer."""
    found: dict[str, int] = {}
    for stream, durable in ((RUNS, "agents"), (RUNS, "signals"), (APPROVALS, APPROVAL_REPLIES)):
        info = await jetstream.call(bus, api("CONSUMER.INFO", stream, durable))
        found[durable] = int(info["num_ack_pending"]) + int(info["num_pending"])
    return found


async def stored_bytes(bus: Bus) -> int:
    """Return the bytes of everything stored for runs: logs, approval requests, timers."""
    infos = [await jetstream.call(bus, api("STREAM.INFO", name)) for name in _STREAMS]
    return sum(int(info["state"]["bytes"]) for info in infos)


async def decide(fleet: Fleet, bus: Bus, parked: Parked) -> Continuation:
    """Reject one request, watch the log for the agent that continues, and wait until the run has ended."""
    claimed: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    ended = asyncio.Event()

    async def on_live(message: Message) -> None:
        commit = Commit.model_validate_json(message.data)
        if commit.claim and not claimed.done():
            claimed.set_result(time.perf_counter())
        if any(isinstance(event.data, RunFinished) for event in commit.events):
            ended.set()

    subscription = await bus.subscribe(subjects.live(TENANT, parked.conversation_id), on_live)
    await bus.ready()
    try:
        begun = time.perf_counter()
        url = f"{fleet.urls[0]}/context/approvals/{parked.approval_id}"
        response = await fleet.http.post(url, json={"all": "reject"}, timeout=30)
        decided_s = time.perf_counter() - begun
        assert response.status_code == 200, response.text
        async with asyncio.timeout(60):
            claimed_s = await claimed - begun
            # Later work of this run must not slow down the next one.
            await ended.wait()
        return Continuation(decided_s, claimed_s)
    finally:
        await subscription.unsubscribe()


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process in bytes, including pages that it shares or maps from files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"process {pid} has no memory")
