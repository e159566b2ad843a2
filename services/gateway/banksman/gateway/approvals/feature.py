"""Builds what people decide: approval requests, values for workflows, remembered decisions."""

from __future__ import annotations

from banksman.bus.publish import RunQueue
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.gateway.approvals.decisions import Decisions
from banksman.gateway.approvals.inputs import Inputs
from banksman.gateway.approvals.operations import operations
from banksman.gateway.approvals.pending import PendingApprovals
from banksman.gateway.approvals.remembered import RememberedDecisions
from banksman.gateway.approvals.remembered_operations import operations as remembered_operations
from banksman.gateway.approvals.set_aside import Asides
from banksman.gateway.assistants.tools import Tools
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.conversations.views import Views
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.quotas.backlog import Backlog
from banksman.gateway.runs.idempotency import StoredRequests
from banksman.runs.schema_checks.checker import SchemaChecker


async def build(base: Foundation) -> None:
    """Build what accepts decisions and values, and what lists the open requests."""
    services, bus, clock = base.services, base.bus, base.clock
    conversations, queue, backlog = services[Conversations], services[RunQueue], services[Backlog]
    key = base.settings.approvals.key()
    schemas = await base.stack.enter_async_context(SchemaChecker())
    slots = ApprovalSlots(bus)
    remembered = RememberedDecisions(bus, conversations, services[Views], queue, backlog)
    requests = services[StoredRequests]
    decisions = Decisions(slots, conversations, services[Tools], schemas, clock, key, remembered, requests)
    services.add(
        slots,
        remembered,
        decisions,
        Inputs(slots, decisions, schemas, clock, key, requests),
        PendingApprovals(bus, slots, conversations, clock),
        Asides(slots, queue, backlog, clock),
    )


FEATURE = Feature((*operations, *remembered_operations), build)
