"""Values that users provide."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import pytest

from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.bus.storage.approval_slots import ApprovalSlots
from banksman.bus.storage.log import EventLog
from banksman.contracts.approvals import InputRequested
from banksman.contracts.errors import BadInput
from banksman.contracts.ids import approval_id_for, new_id
from banksman.contracts.work import ApprovalRequest
from banksman.gateway.approvals.decisions import Decisions
from banksman.gateway.approvals.operations import Inputs
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.conversations.views import Views
from banksman.runs.outcome import RESULT_BYTES
from banksman.runs.schema_checks.checker import SchemaChecker

KEY = b"k" * 32
UNUSED = cast(Any, None)


async def test_a_value_above_the_limit_of_results_is_refused_with_its_size(
    bus: Bus, tenant: str, conversation: str
) -> None:
    slots = ApprovalSlots(bus)
    run_id = f"{conversation}-{new_id('r')}"
    request_id = approval_id_for(run_id)
    async with BrokerClock(bus) as clock, SchemaChecker() as schemas:
        expires_at = clock.now() + timedelta(hours=1)
        wanted = InputRequested(
            request_id=request_id,
            message="Text?",
            schema={"type": "string"},
            tool_call_id="w1",
            expires_at=expires_at,
        )
        request = ApprovalRequest(
            tenant=tenant,
            conversation_id=conversation,
            run_id=run_id,
            approval_id=request_id,
            expires_at=expires_at,
            items=(),
            input=wanted,
        )
        await slots.publish_request(request)
        conversations = Conversations(bus, Views(EventLog(bus)), UNUSED, UNUSED)
        decisions = Decisions(slots, conversations, UNUSED, schemas, clock, KEY, UNUSED, UNUSED)
        inputs = Inputs(slots, decisions, schemas, clock, KEY, UNUSED)
        largest = "y" * (RESULT_BYTES - len('""'))

        with pytest.raises(BadInput) as refused:
            await inputs.submit(tenant, request_id, largest + "y", decline=False, by="ann", reply_id="one")
        provided = await inputs.submit(tenant, request_id, largest, decline=False, by="ann", reply_id="two")

    expected = f"value: expected at most {RESULT_BYTES} bytes of JSON; it has {RESULT_BYTES + 1}"
    assert str(refused.value) == expected
    assert provided.won and provided.reply.value == largest
