"""Decided approvals: their timers neither undo the decision nor retain it permanently (P3)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import httpx
import pytest

from banksman.bus.connection import Bus
from banksman.bus.jetstream import last_message
from banksman.bus.names import TIMERS
from banksman.bus.storage.approval_slots import EXPIRY_TIMER, REMOVAL_TIMER, ApprovalSlots, set_timer
from banksman.contracts import subjects
from tests.scenarios.conftest import Play
from tests.scenarios.test_approvals import bash
from tests.support.client import Client
from tests.support.polling import eventually
from tests.support.scripted_models import ScriptedReply
from tests.support.timeouts import WAIT_TIMEOUT_S

pytestmark = pytest.mark.timeout(120)


async def _parked(bus: Bus, client: Client, play: Play) -> tuple[str, str, str]:
    """Return a parked run: its conversation, its id and the id of its stored approval request."""
    conversation = await client.create(play(bash("true"), ScriptedReply(text="ok")))
    run_id = await client.chat(conversation, "go")
    approval = str((await client.approval_request(run_id))["approval_id"])
    # The request is committed to the log, where the client sees it, before it is stored in its slot.

    async def stored() -> bool:
        return (await ApprovalSlots(bus).read("local", approval))[0] is not None

    await eventually(stored, WAIT_TIMEOUT_S)
    return conversation, run_id, approval


async def _fires(bus: Bus, kind: str, conversation: str, approval: str) -> None:
    """Make a timer of an approval due now."""
    about = {"tenant": "local", "conversation_id": conversation, "approval_id": approval}
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    await set_timer(bus, kind, "local", approval, at=long_ago, payload=json.dumps(about).encode())


async def _until_handled(bus: Bus, kind: str, approval: str) -> None:
    """Wait until the fired timer was handled, which schedules the next one."""

    async def scheduled() -> bool:
        return (
            await last_message(bus, TIMERS, subjects.timer_set(REMOVAL_TIMER, "local", approval)) is not None
        )

    async def handled() -> bool:
        return await last_message(bus, TIMERS, subjects.timer_fired(kind, "local", approval)) is None

    await eventually(scheduled, WAIT_TIMEOUT_S)
    await eventually(handled, WAIT_TIMEOUT_S)


async def test_a_decision_outlives_the_expiry_of_its_approval_request_and_is_removed_later(
    operator: Bus, client: Client, http: httpx.AsyncClient, play: Play
) -> None:
    """P3: a late decision returns the first; a day after the expiry both are removed."""
    conversation, run_id, approval = await _parked(operator, client, play)
    await client.approve(run_id)
    await client.finished(run_id)
    path = f"/context/approvals/{approval}"

    await _fires(operator, EXPIRY_TIMER, conversation, approval)
    await _until_handled(operator, EXPIRY_TIMER, approval)
    late = await http.post(path, json={"all": "reject"})
    await _fires(operator, REMOVAL_TIMER, conversation, approval)

    async def removed() -> bool:
        return await ApprovalSlots(operator).read("local", approval) == (None, None)

    await eventually(removed, WAIT_TIMEOUT_S)
    gone = await http.post(path, json={"all": "reject"})

    assert (late.status_code, late.json()["outcome"]) == (409, "approved")
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "not_found")
    assert await last_message(operator, TIMERS, subjects.timer_set(REMOVAL_TIMER, "local", approval)) is None
    closed = [event["data"]["outcome"] for event in client.events(conversation, "approval.resolved")]
    assert closed == ["approved"]


async def test_an_open_approval_request_is_not_removed(operator: Bus, client: Client, play: Play) -> None:
    """P3: a user can still decide after any timer fired."""
    conversation, run_id, approval = await _parked(operator, client, play)

    await _fires(operator, REMOVAL_TIMER, conversation, approval)
    await _until_handled(operator, REMOVAL_TIMER, approval)
    request, decision = await ApprovalSlots(operator).read("local", approval)
    await client.approve(run_id)

    assert (request is not None, decision) == (True, None)
    assert (await client.finished(run_id))["status"] == "completed"
