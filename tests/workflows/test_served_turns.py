"""Turns in another process, while their run changes."""

from __future__ import annotations

import asyncio
import time

from banksman.bus.connection import Bus
from banksman.contracts.work import CancelRun
from banksman.contracts.workflow_turns import TURN_S
from banksman.runs.handlers import on_cancel
from banksman.runtime.service import ServiceProcess
from banksman.sdk import WorkflowContext, WorkflowServer, workflow
from tests.support.fixtures import settings_of
from tests.support.nats import Broker
from tests.support.timeouts import WAIT_TIMEOUT_S
from tests.workflows.playing import outcome, starting, store
from tests.workflows.test_create_project import agent_ports


async def test_a_cancel_ends_a_run_without_waiting_for_the_turn_of_its_function(
    service: ServiceProcess, server: Broker, link: Bus, tenant: str
) -> None:
    """A turn may take 30 seconds; a user does not wait for its end."""
    in_turn = asyncio.Event()

    @workflow()
    async def ponder(context: WorkflowContext) -> str:
        """Compute for a long time."""
        in_turn.set()
        await asyncio.Event().wait()
        return "never"

    async with WorkflowServer("ponderers", [ponder], nats=settings_of(server)):
        start = starting(tenant, {}, workflow="ponder")
        await store(link, start)
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            await in_turn.wait()
        began = time.monotonic()
        cancel = CancelRun(
            tenant=tenant, conversation_id=start.conversation_id, run_id=start.run_id, by="ada"
        )
        await on_cancel(agent_ports(link), cancel)
        finished = await outcome(link, start)
        took_s = time.monotonic() - began

    assert finished.status == "cancelled"
    assert took_s < TURN_S / 3, took_s
