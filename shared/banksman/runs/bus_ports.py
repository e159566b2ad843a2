"""The ports of a process that drives runs, served by its connection to NATS."""

from __future__ import annotations

from functools import partial

from banksman.bus.connection import Bus
from banksman.bus.publish import RunQueue
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.bus.storage.slots import CallSlots
from banksman.contracts.ids import new_id
from banksman.runs.notifications import OwnerNotifications
from banksman.runs.ports import REDELIVERY_S, Clock, Log, Ports
from banksman.runs.runners.placement import Placements


def bus_ports(
    bus: Bus,
    clock: Clock,
    log: Log,
    placements: Placements,
    notifications: OwnerNotifications,
    signing_key: bytes,
    *,
    prefix: str,
) -> Ports:
    """Return the ports of this process. It gets a new owner id, which begins with `prefix`."""
    return Ports(
        agent=new_id(prefix),
        clock=clock,
        log=log,
        slots=CallSlots(bus),
        approvals=ApprovalSlots(bus),
        work=RunQueue(bus),
        runners=placements,
        notifications=notifications,
        # Verifies the stored replies; also needed by a process that only closes requests.
        signing_key=signing_key,
        reconnected=partial(bus.reconnected_within, REDELIVERY_S),
    )
