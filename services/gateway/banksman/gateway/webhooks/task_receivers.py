"""The receivers of A2A's push notifications for single tasks, stored with the webhooks of their tenant."""

from __future__ import annotations

import json

from banksman.bus.names import EVENTS
from banksman.bus.sealing import SecretBox
from banksman.bus.tail import last_sequence
from banksman.contracts.errors import Conflict, NotFound
from banksman.contracts.ids import new_id
from banksman.gateway.operation.caller import Caller
from banksman.gateway.runs.task_states import TaskReceiver
from banksman.gateway.webhooks.models import Task, Webhook
from banksman.gateway.webhooks.sending import Sender
from banksman.gateway.webhooks.store import WebhookStore
from banksman.runs.ports import Clock

MAX_PER_TASK = 10
MAX_PER_TENANT = 200
"""Maximum receivers of one task, and of all open tasks of a tenant."""


class TaskReceivers:
    """Stores receivers. A receiver is removed after it has confirmed the end of its run."""

    def __init__(self, store: WebhookStore, sender: Sender, box: SecretBox, clock: Clock) -> None:
        self._store = store
        self._sender = sender
        self._box = box
        self._clock = clock

    async def put(self, caller: Caller, asked: TaskReceiver) -> Webhook:
        """Store a receiver, which receives the events of the run from now on.

        Raises:
            BadInput: The address is not allowed.
            Conflict: The task or the tenant has too many receivers.
        """
        self._sender.check("a2a", asked.url)
        # A new id, because with the id of a replaced receiver its messages would count as repeats.
        receiver_id = new_id("task-")
        found = await self._of_tenant(caller.tenant)
        replaced = [one for one in found if _is_named(one, asked.run_id, asked.config_id)]
        others = [one for one in found if one not in replaced]
        of_task = [one for one in others if one.task is not None and one.task.run_id == asked.run_id]
        if len(of_task) >= MAX_PER_TASK or len(others) >= MAX_PER_TENANT:
            raise Conflict(f"at most {MAX_PER_TASK} receivers of a task and {MAX_PER_TENANT} of a tenant")
        sealed = self._box.seal(json.dumps(asked.headers), f"{caller.tenant}.{receiver_id}")
        receiver = Webhook(
            id=receiver_id,
            tenant=caller.tenant,
            url=asked.url,
            events=("run.finished", "approval.requested", "input.requested"),
            format="a2a",
            created_at=self._clock.now(),
            created_by=caller.user,
            after_seq=await last_sequence(self._store.bucket.bus, EVENTS),
            task=Task(run_id=asked.run_id, config_id=asked.config_id, sealed=sealed),
        )
        await self._store.bucket.create(f"{caller.tenant}.{receiver_id}", receiver)
        for one in replaced:
            await self._store.bucket.delete(f"{caller.tenant}.{one.id}")
        return receiver

    async def list(self, tenant: str, run_id: str) -> list[Webhook]:
        """Return the receivers of a task, oldest first."""
        found = await self._of_tenant(tenant)
        return [one for one in found if one.task is not None and one.task.run_id == run_id]

    async def get(self, tenant: str, run_id: str, config_id: str) -> Webhook:
        """Return a receiver.

        Raises:
            NotFound: The task has none with this id.
        """
        found = [one for one in await self._of_tenant(tenant) if _is_named(one, run_id, config_id)]
        if not found:
            raise NotFound("push notification configuration", config_id)
        return found[-1]

    async def delete(self, tenant: str, run_id: str, config_id: str) -> None:
        """Delete a receiver, if there is one; pending messages to it are dropped."""
        for one in await self._of_tenant(tenant):
            if _is_named(one, run_id, config_id):
                await self._store.bucket.delete(f"{tenant}.{one.id}")

    async def _of_tenant(self, tenant: str) -> list[Webhook]:
        return [one for one in await self._store.receivers(tenant) if one.task is not None]


def _is_named(receiver: Webhook, run_id: str, config_id: str) -> bool:
    task = receiver.task
    return task is not None and (task.run_id, task.config_id) == (run_id, config_id)
