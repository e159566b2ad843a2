"""Deletions that wait for a runner do not delay the signals of other tenants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from banksman.agent.router import control_queues
from banksman.bus.connection import Bus
from banksman.bus.jetstream import count_below
from banksman.bus.messages import Message
from banksman.bus.names import OWNERS, RUNNERS, RUNS
from banksman.bus.publish import RunQueue
from banksman.bus.storage.kv import Bucket
from banksman.contracts import subjects
from banksman.contracts.calls import RunnerLease
from banksman.contracts.ids import new_id, run_id_for
from banksman.contracts.runner_requests import FileReply
from banksman.contracts.subjects import ANY
from banksman.contracts.work import CancelRun, DeleteConversation
from banksman.contracts.workspaces import WorkspaceOwner
from tests.runs.long.conftest import Agent
from tests.support.polling import eventually

DELETIONS = 3
RUNNER = "r1"


@asynccontextmanager
async def slow_runner(bus: Bus) -> AsyncGenerator[list[Message]]:
    """A runner that renews its lease and receives requests, but does not reply."""
    requests: list[Message] = []

    async def received(message: Message) -> None:
        requests.append(message)

    async def renew() -> None:
        while True:
            await Bucket(bus, RUNNERS, RunnerLease).put(RUNNER, RunnerLease(runner=RUNNER, runner_epoch=1))
            await asyncio.sleep(1)

    subscription = await bus.subscribe(subjects.files(RUNNER, ANY, ANY), received)
    async with bus.background.running("lease of a test", renew):
        yield requests
    await subscription.unsubscribe()


async def test_a_cancel_is_handled_while_deletions_of_another_tenant_wait_for_their_runner(
    agent: Agent, bus: Bus
) -> None:
    queue = RunQueue(bus)
    other, conversation = new_id("t"), new_id("c")
    deletions = subjects.run_signal(agent.tenant, ANY)
    async with slow_runner(bus) as requests, control_queues(bus, agent.worker):
        for number in range(DELETIONS):
            deleted = f"{agent.conversation}-{number}"
            owner = WorkspaceOwner(runner=RUNNER, runner_epoch=1)
            await Bucket(bus, OWNERS, WorkspaceOwner).put(f"{agent.tenant}.{deleted}", owner)
            signal = DeleteConversation(tenant=agent.tenant, conversation_id=deleted, by="ann")
            await queue.signal(signal, f"delete-{deleted}")
        await eventually(lambda: bool(requests))

        run_id = run_id_for(conversation)
        cancel = CancelRun(tenant=other, conversation_id=conversation, run_id=run_id, by="ben")
        await queue.signal(cancel, f"cancel-{run_id}")

        async def is_cancelled() -> bool:
            return bool((await agent.worker.log.read(other, conversation)).cancelled_early)

        await eventually(is_cancelled)
        assert await count_below(bus, RUNS, deletions) == DELETIONS, "the cancel waited for a deletion"

        async def are_deleted() -> bool:
            while requests:
                await bus.publish(requests.pop().reply, FileReply().model_dump_json().encode())
            return await count_below(bus, RUNS, deletions) == 0

        await eventually(are_deleted)
