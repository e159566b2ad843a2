"""A message that cannot be handled is dead-lettered with its reason, and blocks nothing (P10)."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from banksman.bus.connection import Bus
from banksman.bus.dead import StoredDeadLetter, dead_letters
from banksman.bus.names import FIRST_SEQ, LAST_SEQ, LOG_EPOCH, PREV
from banksman.bus.publish import durable
from banksman.bus.storage.approval_slots import set_timer
from banksman.cli.state import DataDir
from banksman.contracts import subjects
from banksman.contracts.assistants import RunSettings
from banksman.contracts.ids import new_id, run_id_for
from banksman.contracts.work import ApprovalReply, CancelRun, StartRun
from banksman.runs.approval.requests import sign
from tests.scenarios.conftest import Play
from tests.scenarios.test_approvals import bash
from tests.support.client import Client
from tests.support.polling import eventually, scripted_delay
from tests.support.scripted_models import ScriptedReply
from tests.support.system import System
from tests.support.timeouts import WAIT_TIMEOUT_S

pytestmark = pytest.mark.timeout(180)
"""Seconds; a possibly transient error is retried for half a minute before the message is dead-lettered."""

GOOD, POISON = 100, 20
"""Runs, and messages on each subject that is consumed."""
MUCH_GOOD, MUCH_POISON = 1_000, 50
DEAD_LETTER_TIMEOUT_S = 120.0
"""P10: seconds until poison is dead-lettered."""
LOOK_INTERVAL_S = 0.25
"""Seconds between two readings of the dead letters."""
HUGE = 1_000_000
"""Bytes, slightly below the maximum of a stream."""

READERS = ("run.work", "run.signal", "approval.reply", "workflow.run", "timer.fired")


def subject_of(reader: str, tenant: str) -> str:
    """A subject of a durable consumer, for a conversation that does not exist."""
    of = new_id("x")
    match reader:
        case "run.work":
            return subjects.run_work(tenant, of)
        case "run.signal":
            return subjects.run_signal(tenant, of)
        case "approval.reply":
            return subjects.approval_reply(tenant, of)
        case "workflow.run":
            return subjects.workflow_run(subjects.SERVED, tenant, of)
        case _:
            return subjects.timer_set("approval", tenant, of)


def valid(reader: str, tenant: str, conversation: str) -> dict[str, Any]:
    """A valid body."""
    ids: dict[str, Any] = {
        "tenant": tenant,
        "conversation_id": conversation,
        "run_id": run_id_for(conversation),
    }
    match reader:
        case "run.work":
            settings = RunSettings(assistant_id="default", model="openai:scripted/none")
            start = StartRun(message_id=new_id("m"), content="hi", settings=settings, user="ann", **ids)
            return start.model_dump(mode="json")
        case "run.signal":
            return CancelRun(by="ann", **ids).model_dump(mode="json")
        case "approval.reply":
            reply = ApprovalReply(
                approval_id=new_id("a"), outcome="approved", by="ann", decided_at=datetime.now(UTC), **ids
            )
            return reply.model_dump(mode="json")
        case "workflow.run":
            more = {"workflow": "create_project", "message_id": new_id("m"), "parameters": {}, "user": "ann"}
            return {"v": 1, "type": "workflow", **ids, **more}
        case _:
            return {"tenant": tenant, "conversation_id": conversation, "approval_id": new_id("a")}


KINDS: dict[str, Callable[[str, str], bytes]] = {
    "not UTF-8": lambda reader, tenant: b"\xff\xfe" + tenant.encode(),
    "not JSON": lambda reader, tenant: b'{"type": ',
    "empty": lambda reader, tenant: b"",
    "wrong schema": lambda reader, tenant: b'{"type": "start", "tenant": 7}',
    "deep": lambda reader, tenant: b"[" * 50_000,
    "huge": lambda reader, tenant: b"x" * HUGE,
    "unknown tenant": lambda reader, tenant: json.dumps(valid(reader, "somebody-else", new_id("c"))).encode(),
    "unknown type": lambda reader, tenant: b'{"v": 1, "type": "dance"}',
}
"""Dead-lettered at the first delivery."""


async def send(bus: Bus, reader: str, tenant: str, payload: bytes) -> str:
    """Publish a message to a service of the system; return the subject of its delivery."""
    subject = subject_of(reader, tenant)
    if reader != "timer.fired":
        await durable(bus, subject, payload, msg_id=new_id("p"))
        return subject
    _, _, kind, _, timer = subject.split(".")
    await set_timer(bus, kind, tenant, timer, at=datetime.now(UTC) - timedelta(hours=1), payload=payload)
    return subjects.timer_fired(kind, tenant, timer)


async def dead_lettered(
    bus: Bus, tenant: str, number: int, *, known: tuple[StoredDeadLetter, ...] = ()
) -> list[StoredDeadLetter]:
    """Wait until a tenant has this number of dead letters after the known ones; return these."""
    found: list[StoredDeadLetter] = []
    read_to = max((one.stream_seq for one in known), default=0)

    async def all_found() -> bool:
        nonlocal read_to
        # Some of them are large, so each is read once.
        async for one in dead_letters(bus, after=read_to):
            read_to = one.stream_seq
            if tenant in one.letter.subject.split("."):
                found.append(one)
        return len(found) >= number

    def missing() -> str:
        reasons = Counter((one.letter.subject.rsplit(".", 2)[0], one.letter.reason) for one in found)
        return f"{len(found)} of {number} dead letters: {reasons}"

    await eventually(all_found, DEAD_LETTER_TIMEOUT_S, interval_s=LOOK_INTERVAL_S, failure=missing)
    return found


@pytest.mark.parametrize(
    ("good", "poison"),
    [
        (GOOD, POISON),
        pytest.param(MUCH_GOOD, MUCH_POISON, marks=[pytest.mark.soak, pytest.mark.timeout(1800)]),
    ],
)
async def test_poison_among_valid_work_is_dead_lettered_and_the_valid_work_is_done(
    operator: Bus, client: Client, http: httpx.AsyncClient, play: Play, tenant: str, good: int, poison: int
) -> None:
    """P10, A19: poison of eight kinds on every consumed subject, among many runs."""
    model = play(ScriptedReply(text="Fine."), at_end="repeat")
    conversations = [await client.create(model, detail="final") for _ in range(10)]
    at_once = asyncio.Semaphore(50)
    sent: dict[str, bytes] = {}

    async def send_poison(number: int, reader: str) -> None:
        kinds = list(KINDS.values())
        payload = kinds[(number + READERS.index(reader)) % len(kinds)](reader, tenant)
        async with at_once:
            sent[await send(operator, reader, tenant, payload)] = payload

    async def run_well(number: int) -> str:
        path = f"/context/conversations/{conversations[number % 10]}/runs"
        once = {"Idempotency-Key": f"well-{number}"}
        async with at_once:
            started = await http.post(path, json={"content": "go"}, headers=once)
            while "retry-after" in started.headers:
                await scripted_delay(float(started.headers["retry-after"]))
                started = await http.post(path, json={"content": "go"}, headers=once)
        return (await client.finished(started.raise_for_status().json()["run_id"]))["status"]

    client.timeout_s = max(client.timeout_s, good / 5)
    async with asyncio.TaskGroup() as group:
        runs = [group.create_task(run_well(number)) for number in range(good)]
        for number in range(poison):
            for reader in READERS:
                group.create_task(send_poison(number, reader))
        letters = group.create_task(dead_lettered(operator, tenant, poison * len(READERS)))

    assert Counter(run.result() for run in runs) == {"completed": good}
    found = [one.letter for one in letters.result()]
    assert {one.subject: base64.b64decode(one.payload_base64) for one in found} == sent
    assert all(one.reason and one.stream_seq > 0 for one in found)
    assert {one.stream for one in found} == {"RUNS", "APPROVALS", "WORKFLOWS", "TIMERS"}


async def test_poison_without_headers_is_dead_lettered(operator: Bus, tenant: str) -> None:
    """A19: as a client in another language may send it, without a message id."""
    subject = subject_of("run.signal", tenant)
    await operator.nc.publish(subject, b"\xff")

    [letter] = [one.letter for one in await dead_lettered(operator, tenant, 1)]

    assert (letter.subject, letter.stream, letter.headers) == (subject, "RUNS", {})


async def test_a_decision_made_after_the_expiry_is_dead_lettered_and_the_request_can_still_be_decided(
    system: System, operator: Bus, client: Client, play: Play
) -> None:
    """P4, P10, A19: a gateway signed it nevertheless, because its clock was wrong."""
    conversation = await client.create(play(bash("echo here"), ScriptedReply(text="ok")))
    run_id = await client.chat(conversation, "go")
    approval_request = await client.approval_request(run_id)
    late = ApprovalReply(
        tenant="local",
        conversation_id=conversation,
        run_id=run_id,
        approval_id=approval_request["approval_id"],
        outcome="rejected",
        by="local",
        digests=tuple(item["digest"] for item in approval_request["items"]),
        decided_at=datetime.fromisoformat(approval_request["expires_at"]) + timedelta(seconds=1),
    )
    signed = sign(late, DataDir(system.data_dir).signing_key_file.read_bytes().strip())
    subject = subjects.approval_reply("local", approval_request["approval_id"])
    await durable(operator, subject, signed.model_dump_json(by_alias=True).encode(), msg_id=new_id("x"))
    async with asyncio.timeout(WAIT_TIMEOUT_S):
        while not (
            found := [one.letter async for one in dead_letters(operator) if one.letter.subject == subject]
        ):
            continue
    await client.request("approval.reply", approval_id=approval_request["approval_id"], all="approve")
    outcome = await client.finished(run_id)

    assert "after the request had expired" in found[0].reason
    assert outcome["tool_calls"][0]["result"]["stdout"] == "here\n"


async def test_a_message_for_newer_processes_is_left_to_them_and_then_dead_lettered(
    operator: Bus, tenant: str
) -> None:
    """A19: a newer version, and a message whose handling always fails because its log is broken."""
    expected: dict[str, str] = {}
    for reader in READERS[:4]:
        body = {**valid(reader, tenant, new_id("c")), "v": 9}
        expected[await send(operator, reader, tenant, json.dumps(body).encode())] = "version 9"
    broken = new_id("c")
    # With the headers of a commit: without them, the check of all logs ten seconds after the start finds the
    # log damaged, and its work is retained for an operator.
    headers = {FIRST_SEQ: "1", LAST_SEQ: "1", PREV: "0", LOG_EPOCH: new_id("e")}
    log = subjects.conversation(tenant, broken)
    await durable(operator, log, b"no commit", msg_id=new_id("x"), headers=headers)
    for reader in READERS[:2]:
        body = valid(reader, tenant, broken)
        subject = (
            subjects.run_work(tenant, broken) if reader == "run.work" else subjects.run_signal(tenant, broken)
        )
        await durable(operator, subject, json.dumps(body).encode(), msg_id=new_id("p"))
        expected[subject] = "is no commit"

    letters = [one.letter for one in await dead_lettered(operator, tenant, len(expected))]

    assert {one.subject for one in letters} == set(expected)
    for one in letters:
        assert expected[one.subject] in one.reason, one.reason
        assert "not handled in 10 deliveries" in one.reason


async def test_an_undecodable_decision_does_not_block_its_approval(
    operator: Bus, client: Client, play: Play
) -> None:
    """P3, P10: bytes in the slot of a decision are dead-lettered, and the request can be decided."""
    conversation = await client.create(play(bash("echo here"), ScriptedReply(text="ok")))
    run_id = await client.chat(conversation, "go")
    approval_request = await client.approval_request(run_id)
    subject = subjects.approval_reply("local", approval_request["approval_id"])

    await durable(operator, subject, b"\xff", msg_id=new_id("x"))
    await client.request("approval.reply", approval_id=approval_request["approval_id"], all="approve")
    outcome = await client.finished(run_id)

    assert outcome["tool_calls"][0]["result"]["stdout"] == "here\n"
    [letter] = [one.letter async for one in dead_letters(operator) if one.letter.subject == subject]
    assert base64.b64decode(letter.payload_base64) == b"\xff"


@pytest.mark.parametrize("path", ["register", "withdraw"])
@pytest.mark.parametrize("kind", sorted(KINDS))
async def test_an_undecodable_request_gets_an_error(operator: Bus, path: str, kind: str) -> None:
    """A19, A39: the registry returns one sentence for every kind of poison, without a traceback."""
    response = await operator.request(
        subjects.registry("tool", path), KINDS[kind]("tool", "t"), WAIT_TIMEOUT_S
    )

    error = json.loads(response)
    assert error["code"] in ("bad_request", "too_large")
    assert "Traceback" not in response.decode()


async def test_dead_letters_are_listed_shown_replayed_and_removed(
    system: System, operator: Bus, tenant: str
) -> None:
    """P10: the operator's commands for dead letters."""
    await send(operator, "run.signal", tenant, b'{"escape": "\x1b[31m", "text": "\xc3\xa9"}')
    await send(operator, "run.signal", tenant, b"\xff")
    letters = await dead_lettered(operator, tenant, 2)
    second, first = sorted(letters, key=lambda one: len(one.letter.payload_base64))

    listed = banksman(system, "dead", "ls", "--stream", "RUNS", "--json")
    mine = [row for row in map(json.loads, listed.stdout.splitlines()) if tenant in row["subject"]]
    assert (listed.returncode, [row["id"] for row in mine]) == (1, [one.stream_seq for one in letters])

    shown = banksman(system, "dead", "show", str(first.stream_seq))
    assert shown.returncode == 0
    assert first.letter.subject in shown.stdout and first.letter.reason in shown.stdout
    assert "\\u001b[31m" in shown.stdout and "\x1b" not in shown.stdout

    assert banksman(system, "dead", "replay", str(first.stream_seq)).returncode == 0
    [again] = await dead_lettered(operator, tenant, 1, known=(first, second))
    assert again.letter.subject == first.letter.subject

    for seq in (second.stream_seq, again.stream_seq):
        assert banksman(system, "dead", "rm", str(seq)).returncode == 0
    assert [one async for one in dead_letters(operator) if tenant in one.letter.subject.split(".")] == []
    gone = banksman(system, "dead", "rm", str(second.stream_seq))
    assert (gone.returncode, "no dead letter" in gone.stderr) == (2, True)


async def test_a_foreign_dead_letter_is_shown_as_far_as_possible(operator: Bus) -> None:
    """A19: missing headers break neither the list nor later entries."""
    ack = await durable(operator, subjects.dead("ELSEWHERE", "unknown"), b"bare", msg_id=new_id("x"))

    [letter] = [
        one.letter
        async for one in dead_letters(operator, stream="ELSEWHERE")
        if one.stream_seq == ack.stream_seq
    ]

    assert (letter.stream, letter.headers, base64.b64decode(letter.payload_base64)) == ("DEAD", {}, b"bare")


def banksman(system: System, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line with the settings of the system."""
    return subprocess.run(
        [sys.executable, "-m", "banksman.cli", *words, "--data-dir", str(system.data_dir)],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=150,
    )
