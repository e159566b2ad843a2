"""The receivers of A2A's push notifications for single tasks, stored with the webhooks of their tenant."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

from banksman.bus.names import EVENTS
from banksman.bus.secrets import SecretBox
from banksman.bus.storage.tail import last_sequence
from banksman.contracts.errors import Conflict, NotFound
from banksman.contracts.ids import new_id
from banksman.gateway.conversations.views import Views
from banksman.gateway.operation.caller import CHAT, READ, Caller
from banksman.gateway.operation.declaration import CONFLICT, MISSING, Operations
from banksman.gateway.operation.parameters import CallerDep, provided
from banksman.gateway.runs.bodies import TaskReceiver
from banksman.gateway.runs.runs import Runs
from banksman.gateway.webhooks.models import Task, Webhook
from banksman.gateway.webhooks.queueing import WebhookQueue
from banksman.gateway.webhooks.sending import Sender, secret_of
from banksman.gateway.webhooks.store import WebhookStore
from banksman.runs.ports import Clock

MAX_PER_TASK = 10
MAX_PER_TENANT = 200
"""Maximum receivers of one task, and of all open tasks of a tenant."""


OF_A2A = "the methods of A2A for push notification configurations do the same"

operations = Operations("webhooks")


@dataclass(frozen=True, slots=True)
class TaskReceivers:
    """Stores receivers. One is removed after it has confirmed the end of its run."""

    store: WebhookStore
    sender: Sender
    queue: WebhookQueue
    views: Views
    runs: Runs
    signing_key: bytes
    clock: Clock

    @operations.between_features(
        "task_receiver.create", right=CHAT, errors=(MISSING, CONFLICT), reason=OF_A2A
    )
    async def create_receiver(self: Service, receiver: TaskReceiver, caller: CallerDep) -> str:
        """Store a receiver, and return the secret with which messages to it are signed."""
        found = await self.runs.get(caller.tenant, receiver.run_id)
        stored = await self._put(caller, receiver)
        await self.queue.follow()
        # The run may have ended, or requested a decision, before the receiver was stored.
        first = max(0, found.view.first_seq - 1)
        events = await self.views.events(caller.tenant, found.conversation_id, after_seq=first)
        await self.queue.catch_up(stored, found.conversation_id, events)
        return secret_of(self.signing_key, stored.tenant, stored.id)

    async def _put(self, caller: Caller, asked: TaskReceiver) -> Webhook:
        self.sender.check("a2a", asked.url)
        # A new id, because with the id of a replaced receiver its messages would count as repeats.
        receiver_id = new_id("task-")
        found = await self._of_tenant(caller.tenant)
        replaced = [one for one, task in found if _is_named(task, asked.run_id, asked.config_id)]
        others = [(one, task) for one, task in found if one not in replaced]
        of_task = [one for one, task in others if task.run_id == asked.run_id]
        if len(of_task) >= MAX_PER_TASK or len(others) >= MAX_PER_TENANT:
            raise Conflict(f"at most {MAX_PER_TASK} receivers of a task and {MAX_PER_TENANT} of a tenant")
        sealed = SecretBox(self.signing_key).seal(json.dumps(asked.headers), f"{caller.tenant}.{receiver_id}")
        receiver = Webhook(
            id=receiver_id,
            tenant=caller.tenant,
            url=asked.url,
            events=("run.finished", "approval.requested", "input.requested"),
            format="a2a",
            created_at=self.clock.now(),
            created_by=caller.user,
            after_seq=await last_sequence(self.store.bucket.bus, EVENTS),
            task=Task(run_id=asked.run_id, config_id=asked.config_id, sealed=sealed),
        )
        await self.store.put(receiver)
        for one in replaced:
            await self.store.remove(one)
        return receiver

    async def _of_task(self, caller: Caller, run_id: str) -> list[TaskReceiver]:
        return [
            TaskReceiver(run_id=run_id, config_id=task.config_id, url=one.url)
            for one, task in await self._of_tenant(caller.tenant)
            if task.run_id == run_id
        ]

    @operations.between_features("task_receiver.read", right=READ, errors=(MISSING,), reason=OF_A2A)
    async def read_receiver(self: Service, run_id: str, config_id: str, caller: CallerDep) -> TaskReceiver:
        """Return a receiver, without its headers."""
        found = [one for one in await self._of_task(caller, run_id) if one.config_id == config_id]
        if not found:
            raise NotFound("push notification configuration", config_id)
        return found[-1]

    @operations.between_features("task_receiver.list", right=READ, errors=(MISSING,), reason=OF_A2A)
    async def list_receivers(self: Service, run_id: str, caller: CallerDep) -> list[TaskReceiver]:
        """Return the receivers of a task, without their headers."""
        await self.runs.get(caller.tenant, run_id)
        return await self._of_task(caller, run_id)

    @operations.between_features("task_receiver.delete", right=CHAT, errors=(MISSING,), reason=OF_A2A)
    async def delete_receiver(self: Service, run_id: str, config_id: str, caller: CallerDep) -> None:
        """Delete a receiver; a missing one is no error."""
        await self.runs.get(caller.tenant, run_id)
        for one, task in await self._of_tenant(caller.tenant):
            if _is_named(task, run_id, config_id):
                await self.store.remove(one)

    async def _of_tenant(self, tenant: str) -> list[tuple[Webhook, Task]]:
        return [(one, one.task) for one in await self.store.receivers(tenant) if one.task is not None]


Service = Annotated[TaskReceivers, provided(TaskReceivers)]


def _is_named(task: Task, run_id: str, config_id: str) -> bool:
    return (task.run_id, task.config_id) == (run_id, config_id)
