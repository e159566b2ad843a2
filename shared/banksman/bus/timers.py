"""Timers: messages that the server publishes when they are due, over any restart."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from banksman.bus.connection import Bus
from banksman.bus.publish import durable
from banksman.contracts import subjects
from banksman.contracts.errors import Poison
from banksman.contracts.ids import new_id


@dataclass(frozen=True, slots=True)
class TimerName:
    """What a timer is for."""

    kind: str
    tenant: str
    timer_id: str


async def set_timer(
    bus: Bus, kind: str, tenant: str, timer_id: str, *, at: datetime, payload: bytes = b""
) -> None:
    """Have `payload` delivered to the durable `timers` at `at`; at once when that is past.

    Set again it replaces the first; set again after it fired, it fires again.

    Raises:
        Unavailable, Overloaded: as of a durable publish.
    """
    await durable(
        bus,
        subjects.timer_set(kind, tenant, timer_id),
        payload,
        # Never the same id twice: a timer that is set again after it was cancelled would count as stored.
        msg_id=new_id("timer-"),
        schedule_at=at,
        schedule_target=subjects.timer_fired(kind, tenant, timer_id),
    )


def fired_timer(subject: str) -> TimerName:
    """What fired, from the subject of its message.

    Raises:
        Poison: the subject is not a fired timer's.
    """
    match subject.split("."):
        case ["timer", "fired", kind, tenant, timer_id]:
            return TimerName(kind, tenant, timer_id)
        case _:
            raise Poison(subject, "not a fired timer")
