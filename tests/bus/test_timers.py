"""Timers and dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from banksman.bus.connection import Bus
from banksman.bus.dead import dead_letter, dead_letters, replay
from banksman.bus.jetstream import last_message, purge_subject
from banksman.bus.names import FIRED_TIMERS, TIMERS
from banksman.bus.queues.handling import Handler
from banksman.bus.queues.work import work
from banksman.bus.storage.approval_slots import TimerName, fired_timer, set_timer
from banksman.contracts import subjects
from banksman.contracts.errors import NotFound, Poison
from tests.bus.builders import Recorder, now
from tests.support.nats import NatsServer


@asynccontextmanager
async def serving_timers(bus: Bus, handler: Handler) -> AsyncGenerator[None]:
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(work(bus, TIMERS, FIRED_TIMERS, handler, slots=8, stop=stop))
        try:
            yield
        finally:
            stop.set()


def soon(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


async def test_a_due_timer_fires_with_its_name(own_bus: Bus) -> None:
    recorder = Recorder()
    due = now() + soon(0.4)
    async with serving_timers(own_bus, recorder):
        await set_timer(own_bus, "approval", "t1", "a1", at=due, payload=b"expire")
        await recorder.until(lambda it: len(it.messages) == 1)
        assert now() >= due
    (fired,) = recorder.messages
    assert fired_timer(fired.subject) == TimerName("approval", "t1", "a1")
    assert fired.data == b"expire"


async def test_a_timer_in_the_past_fires_at_once(own_bus: Bus) -> None:
    recorder = Recorder()
    async with serving_timers(own_bus, recorder):
        await set_timer(own_bus, "approval", "t1", "a1", at=now() - soon(3600))
        await recorder.until(lambda it: len(it.messages) == 1)


async def cancel(bus: Bus, timer_id: str) -> int:
    """Purge the subject of a timer, which cancels it; return the number of removed timers."""
    return await purge_subject(bus, TIMERS, subjects.timer_set("approval", "t1", timer_id))


async def test_a_cancelled_timer_does_not_fire_and_can_be_set_again(own_bus: Bus) -> None:
    recorder = Recorder()
    due = now() + soon(0.5)
    async with serving_timers(own_bus, recorder):
        for timer in ("a1", "a2", "a3"):
            await set_timer(own_bus, "approval", "t1", timer, at=due, payload=timer.encode())
        assert await cancel(own_bus, "a1") == 1
        assert await cancel(own_bus, "a2") == 1
        assert await cancel(own_bus, "never-set") == 0
        await set_timer(own_bus, "approval", "t1", "a2", at=due, payload=b"a2 again")
        await recorder.until(lambda it: len(it.messages) == 2)
    assert sorted(recorder.payloads) == [b"a2 again", b"a3"]


async def test_a_timer_set_again_fires_once_at_its_new_time(own_bus: Bus) -> None:
    recorder = Recorder()
    later = now() + soon(0.8)
    async with serving_timers(own_bus, recorder):
        await set_timer(own_bus, "retry", "t1", "x", at=now() + soon(0.4), payload=b"old")
        await set_timer(own_bus, "retry", "t1", "x", at=later, payload=b"new")
        await set_timer(own_bus, "retry", "t1", "marker", at=later + soon(0.3), payload=b"marker")
        await recorder.until(lambda it: b"marker" in it.payloads)
    assert recorder.payloads == [b"new", b"marker"]


async def test_a_timer_survives_a_restart_of_the_server(own_nats: NatsServer, own_bus: Bus) -> None:
    recorder = Recorder()
    await set_timer(own_bus, "approval", "t1", "a1", at=now() + soon(0.5), payload=b"survived")
    own_nats.restart()
    async with serving_timers(own_bus, recorder):
        await recorder.until(lambda it: it.payloads == [b"survived"])


def test_a_subject_of_another_kind_is_not_a_fired_timer() -> None:
    with pytest.raises(Poison):
        fired_timer(subjects.timer_set("approval", "t1", "a1"))


async def test_a_dead_letter_is_stored_completely_and_once(bus: Bus, tenant: str) -> None:
    """A message of the maximum size can be dead-lettered, because its origin is stored in headers."""
    payload = b"\x00\xff" * 500_000
    for _ in range(2):
        await dead_letter(
            bus,
            subject=subjects.run_work(tenant, "c1"),
            stream=tenant,
            stream_seq=7,
            reason="not a StartRun:\r\nNats-Rollup: all " + "x" * 2000,
            payload=payload,
            headers={"traceparent": "00-1"},
        )
    (stored,) = [letter async for letter in dead_letters(bus, stream=tenant)]
    assert stored.letter.reason.startswith("not a StartRun: Nats-Rollup: all xxx")
    assert (stored.letter.subject, stored.letter.stream_seq) == (subjects.run_work(tenant, "c1"), 7)
    assert stored.letter.headers == {"traceparent": "00-1"}
    assert len(stored.letter.payload_base64) > len(payload)


async def test_a_replayed_dead_letter_moves_back_to_its_subject(bus: Bus, tenant: str) -> None:
    subject = subjects.conversation(tenant, "c1")
    seq = await dead_letter(
        bus,
        subject=subject,
        stream=tenant,
        stream_seq=1,
        reason="a bug, fixed since",
        payload=b"payload",
        headers={"Nats-Msg-Id": "m1", "traceparent": "00-1"},
    )
    await replay(bus, seq)
    message = await last_message(bus, "EVENTS", subject)
    assert message is not None
    assert (message.data, message.headers["traceparent"]) == (b"payload", "00-1")
    assert [letter async for letter in dead_letters(bus, stream=tenant)] == []
    with pytest.raises(NotFound):
        await replay(bus, seq)
