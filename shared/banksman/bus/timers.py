"""Timers: scheduled messages, which the server publishes when they are due and which survive restarts."""

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
    """The identity of a timer."""

    kind: str
    tenant: str
    timer_id: str


async def set_timer(
    bus: Bus, kind: str, tenant: str, timer_id: str, *, at: datetime, payload: bytes = b""
) -> None:
    """Schedule the delivery of `payload` to the durable `timers`; a time in the past delivers at once.

    Setting a timer again replaces it. A timer that is set again after it fired fires again.

    Raises:
        Unavailable, Overloaded: As `durable`.
    """
    await durable(
        bus,
        subjects.timer_set(kind, tenant, timer_id),
        payload,
        # A new id each time: otherwise a timer that is cancelled and set again would count as a duplicate and
        # would not be stored.
        msg_id=new_id("timer-"),
        schedule_at=at,
        schedule_target=subjects.timer_fired(kind, tenant, timer_id),
    )


def fired_timer(subject: str) -> TimerName:
    """Parse the identity of a fired timer from the subject of its message.

    Raises:
        Poison: The subject is not that of a fired timer.
    """
    match subject.split("."):
        case ["timer", "fired", kind, tenant, timer_id]:
            return TimerName(kind, tenant, timer_id)
        case _:
            raise Poison(subject, "the subject is not that of a fired timer")
