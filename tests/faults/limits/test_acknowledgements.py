"""A broker killed directly after an acknowledgement forgets it: handled messages are redelivered (P2)."""

from __future__ import annotations

import asyncio
import random

import pytest

from banksman.bus import jetstream, names
from banksman.bus.connection import Bus
from banksman.bus.messages import Message
from banksman.bus.queues.handling import IN_PROGRESS, NAK
from banksman.contracts.errors import Unavailable
from banksman.contracts.ids import new_id
from tests.faults.chaos.conftest import SEED, WAIT_TIMEOUT_S, Stage, bash
from tests.support.chaos.plans import AUTO
from tests.support.polling import eventually, scripted_delay
from tests.support.scripted_models import Gate, ScriptedReply

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

RUNS = 4
"""The slots of an agent of `stage`; the broker dies after the first of their
acknowledgements."""
WITHIN_S = 0.1


class Acknowledgements:
    """Reports the acknowledgements that agents send for runs."""

    def __init__(self) -> None:
        self.heard = asyncio.Event()

    async def __call__(self, message: Message) -> None:
        if message.data != IN_PROGRESS and not message.data.startswith(NAK):
            self.heard.set()


async def test_a_broker_killed_directly_after_an_acknowledgement_repeats_no_effect(stage: Stage) -> None:
    """P1, P2, A06: three times, at most 100 ms after it."""
    await _killed_after_acknowledgements(stage, rounds=3)


@pytest.mark.soak
@pytest.mark.timeout(3600)
async def test_a_broker_killed_fifty_times_after_acknowledgements_repeats_no_effect(stage: Stage) -> None:
    """P1, P2, A06."""
    await _killed_after_acknowledgements(stage, rounds=50)


async def _killed_after_acknowledgements(stage: Stage, rounds: int) -> None:
    print(f"seed {SEED}")  # noqa: T201  # shown when the test fails
    chance = random.Random(SEED)
    acknowledged = Acknowledgements()
    runs: list[tuple[str, str]] = []
    async with stage.fleet.operator() as operator, stage.connected() as client:
        await operator.subscribe(f"$JS.ACK.{names.RUNS}.{names.AGENTS}.>", acknowledged)
        for _ in range(rounds):
            await operator.ready(WAIT_TIMEOUT_S)
            markers = [new_id("mark-") for _ in range(RUNS)]
            begun = [await stage.run(client, *_replies(marker), assistant=AUTO) for marker in markers]
            for _, run_id in begun:
                await client.event("tool_call.completed", run_id=run_id)
            acknowledged.heard.clear()
            for marker in markers:
                stage.model.open_gate(marker)
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                await acknowledged.heard.wait()
            await scripted_delay(chance.uniform(0, WITHIN_S))
            await stage.restarted("nats")
            for _, run_id in begun:
                assert (await client.finished(run_id))["status"] == "completed"
            await _nothing_is_open(operator)
            await stage.fleet.ready()
            runs += begun
            assert [stage.fleet.executions(marker) for marker in markers] == [1] * RUNS
        ends = [client.events(conversation, "run.finished") for conversation, _ in runs]
        assert [len(found) for found in ends] == [1] * len(runs)


def _replies(marker: str) -> tuple[ScriptedReply, ScriptedReply]:
    """A command, and a reply that waits: all runs end and are acked when the reply is released."""
    return bash(marker), ScriptedReply(text="done", gate=Gate(name=marker))


async def _nothing_is_open(operator: Bus) -> None:
    """Wait until every message has been handled, including redelivered ones."""

    async def handled() -> bool:
        try:
            info = await jetstream.call(operator, names.api("STREAM.INFO", names.RUNS))
        except Unavailable:
            return False
        return info["state"]["messages"] == 0

    await eventually(handled, WAIT_TIMEOUT_S, interval_s=0.1)
