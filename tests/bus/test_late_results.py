"""Late results of runners are stored as notes for operators, and are never handled as work."""

from __future__ import annotations

import base64

import pytest

from banksman.bus.connection import Bus
from banksman.bus.dead import dead_letters, read_dead_letter, replay, store_late_result
from banksman.bus.jetstream import last_message
from banksman.bus.names import DEAD
from banksman.bus.publish import durable
from banksman.bus.secrets import CallTickets
from banksman.bus.storage.slots import CallSlots
from banksman.contracts import subjects
from banksman.contracts.calls import CallRequest, LateResult
from banksman.contracts.errors import Conflict
from banksman.contracts.tools import ToolCall, ToolResult
from banksman.contracts.work import DeadLetter
from banksman.deployment.users import AGENT, OPERATOR
from banksman.quotas.places import Shares
from banksman.runs.call_attempt import unknown_outcome
from banksman.runs.runners.calls import LateResults, LeasedSlots, RunnerCalls
from tests.bus.builders import finished, now
from tests.support.fixtures import SecuredNats
from tests.support.relaying import tickets

__all__ = ["tickets"]

RUNNER = "tool-runner-r1"


def late(tenant: str, ticket: str | None = None) -> LateResult:
    return LateResult(
        tenant=tenant,
        conversation_id="c1",
        run_id="c1-r1",
        attempt="k-1",
        tool="bash",
        digest="ab" * 32,
        runner="r1",
        runner_epoch=1,
        ended_at=now(),
        result=finished("k-1", output="done").result,
        ticket=ticket,
    )


def call_request(tenant: str, tickets: CallTickets | None = None, *, idempotent: bool = False) -> CallRequest:
    call = ToolCall(id="k", name="bash", arguments={"command": "true"}, timeout_s=9, idempotent=idempotent)
    return CallRequest(
        tenant=tenant,
        conversation_id="c1",
        run_id="c1-r1",
        attempt="k-1",
        ticket=tickets and tickets.issue(tenant, "k-1", "r1"),
        call=call,
        digest=call.digest,
        runner_epoch=1,
        deadline=now(),
        left_s=0,
    )


def runner_calls(bus: Bus, *, holds_lease: bool = False) -> RunnerCalls:
    """Return the call state of a runner process, on a connection with a runner's permissions."""
    slots = LeasedSlots(CallSlots(bus, may_read=False), runner_epoch=1, holds=lambda: holds_lease)
    return RunnerCalls(
        runner="r1",
        runner_epoch=1,
        slots=slots,
        capacity=Shares(1),
        now=now,
        may_start=lambda: True,
        may_repeat=lambda request: request.call.idempotent,
        note=LateResults(bus).store,
    )


async def notes(bus: Bus, tenant: str) -> list[DeadLetter]:
    return [
        one.letter
        async for one in dead_letters(bus, stream="NOTES")
        if tenant in one.letter.subject.split(".")
    ]


@pytest.mark.parametrize(("idempotent", "stored"), [(False, 1), (True, 0)])
async def test_a_late_result_is_stored_as_a_note_and_changes_nothing(
    secured_nats: SecuredNats, tickets: CallTickets, tenant: str, idempotent: bool, stored: int
) -> None:
    """An idempotent call may run on several runners, so its results are never late."""
    request = call_request(tenant, tickets, idempotent=idempotent)
    declared = finished("k-1").model_copy(update={"result": unknown_outcome("k", "its machine failed")})
    async with (
        await secured_nats.connect(RUNNER) as runner,
        await secured_nats.connect(AGENT) as agent,
        await secured_nats.connect(OPERATOR) as operator,
    ):
        slots = CallSlots(agent)

        async def ends_late(_request: CallRequest) -> ToolResult:
            await slots.store_result(tenant, declared)
            return finished("k-1", output="late text").result

        await runner_calls(runner).perform(request, ends_late)
        facts = await slots.read(tenant, "k-1")
        assert facts.finished == declared
        found = await notes(operator, tenant)
        assert len(found) == stored
        for letter in found:
            note = LateResult.model_validate_json(base64.b64decode(letter.payload_base64))
            assert letter.subject == subjects.tool_result(tenant, "k-1")
            assert letter.reason.startswith("late_result: call k of run c1-r1 in c1 ended on r1 (epoch 1)")
            assert (note.tenant, note.run_id, note.digest) == (tenant, "c1-r1", request.digest)
            assert note.result.content["output"] == "late text"


async def test_a_result_stored_again_after_a_lost_acknowledgement_is_not_late(
    secured_nats: SecuredNats, tickets: CallTickets, tenant: str
) -> None:
    request = call_request(tenant, tickets)
    async with (
        await secured_nats.connect(RUNNER) as runner,
        await secured_nats.connect(OPERATOR) as operator,
    ):

        async def stored_before(_request: CallRequest) -> ToolResult:
            held = finished("k-1").model_copy(update={"ticket": request.ticket})
            await CallSlots(runner, may_read=False).store_result(tenant, held, runner_epoch=1)
            return held.result

        await runner_calls(runner).perform(request, stored_before)
        assert await notes(operator, tenant) == []


async def test_a_note_is_stored_once_and_is_never_replayed(
    secured_nats: SecuredNats, tickets: CallTickets, tenant: str
) -> None:
    note = late(tenant, tickets.issue(tenant, "k-1", "r1"))
    async with (
        await secured_nats.connect(RUNNER) as runner,
        await secured_nats.connect(OPERATOR) as operator,
    ):
        number = await store_late_result(runner, note)
        assert await store_late_result(runner, note) == number
        assert len(await notes(operator, tenant)) == 1
        with pytest.raises(Conflict, match=f"dead letter {number} is a note of a late result"):
            await replay(operator, number)
        assert await last_message(operator, DEAD, subjects.late_result()) is not None
        assert await CallSlots(operator).read(tenant, "k-1") == await CallSlots(operator).read(tenant, "k-2")


async def test_headers_of_a_note_do_not_turn_it_into_work(secured_nats: SecuredNats, tenant: str) -> None:
    forged = {"Banksman-Dead-Subject": subjects.run_work(tenant, "c1"), "Banksman-Dead-Stream": "RUNS"}
    async with await secured_nats.connect(OPERATOR) as operator:
        ack = await durable(operator, subjects.late_result(), b"{}", msg_id=tenant, headers=forged)
        letter = await read_dead_letter(operator, ack.stream_seq)
        assert (letter.subject, letter.stream) == (subjects.late_result(), "NOTES")
        assert letter.reason.startswith("late_result: ")
        with pytest.raises(Conflict):
            await replay(operator, ack.stream_seq)


async def test_a_note_that_cannot_be_stored_affects_no_call(secured_nats: SecuredNats, tenant: str) -> None:
    """Only runners may store notes in RUN."""
    async with await secured_nats.connect("gateway-files") as stranger:
        await LateResults(stranger).store(late(tenant))
        assert stranger.stats.forbidden == 1
