"""The audit trail (stream AUDIT): one stored message for each administrative action."""

from __future__ import annotations

from banksman.bus.connection import Bus
from banksman.bus.publish import durable
from banksman.contracts import subjects
from banksman.contracts.audit import AuditEntry


async def record(bus: Bus, entry: AuditEntry, *, msg_id: str) -> None:
    """Store an entry. Safe to repeat with the same message id.

    Raises:
        Overloaded, Unavailable: It was not stored.
    """
    subject = subjects.audit(entry.tenant, *entry.action.split("."))
    await durable(bus, subject, entry.model_dump_json().encode(), msg_id=msg_id)
