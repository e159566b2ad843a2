"""Decisions that are retried."""

from __future__ import annotations

from typing import Any, cast

import pytest

from banksman.bus.connection import Bus
from banksman.bus.storage.log import EventLog
from banksman.contracts.errors import NotFound
from banksman.contracts.ids import approval_id_for, new_id
from banksman.gateway.approvals.decisions import Decisions
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.conversations.views import Views

UNUSED = cast(Any, None)


@pytest.mark.parametrize("missed", [1, 2])
async def test_an_approval_found_neither_in_its_slot_nor_in_the_log_is_read_again(
    bus: Bus, tenant: str, missed: int
) -> None:
    """P3: a new leader shows its slots late, and meanwhile another user decides, which ends the request."""
    conversations = Conversations(bus, Views(EventLog(bus)), UNUSED, UNUSED)
    decisions = Decisions(UNUSED, conversations, UNUSED, UNUSED, UNUSED, b"", UNUSED, UNUSED)
    approval_id = approval_id_for(f"{new_id('c')}-{new_id('w')}")
    left = [NotFound("approval", approval_id)] * missed

    async def attempt() -> str:
        if left:
            raise left.pop()
        return "decided"

    if missed == 1:
        assert await decisions.when_stored(tenant, approval_id, attempt) == "decided"
    else:
        with pytest.raises(NotFound):
            await decisions.when_stored(tenant, approval_id, attempt)
        assert left == []
