"""The receivers of A2A's push notifications for single tasks, stored with the webhooks of their tenant."""

from __future__ import annotations

import json

from banksman.bus.names import EVENTS
from banksman.bus.secrets.sealing import SecretBox
from banksman.bus.storage.tail import last_sequence
from banksman.contracts.errors import Conflict, NotFound
from banksman.contracts.ids import new_id
from banksman.gateway.conversations.views import Views
from banksman.gateway.operation.caller import Caller
from banksman.gateway.runs.task_states import TaskReceiver
from banksman.gateway.webhooks.models import Task, Webhook
from banksman.gateway.webhooks.queueing import WebhookQueue
from banksman.gateway.webhooks.sending import Sender, secret_of
from banksman.gateway.webhooks.store import WebhookStore
from banksman.runs.ports import Clock

MAX_PER_TASK = 10
MAX_PER_TENANT = 200
"""Maximum receivers of one task, and of all open tasks of a tenant."""


class TaskReceivers:
    """Stores receivers. One is removed after it has confirmed the end of its run."""

    def __init__(
        self,
        store: WebhookStore,
        sender: Sender,
        queue: WebhookQueue,
        views: Views,
        signing_key: bytes,
        clock: Clock,
    ) -> None:
        self._store = store
        self._sender = sender
        self._queue = queue
        self._views = views
        self._key = signing_key
        self._box = SecretBox(signing_key)
        self._clock = clock

    async def add(self, caller: Caller, asked: TaskReceiver, conversation_id: str, *, after_seq: int) -> str:
        receiver = await self._put(caller, asked)
        await self._queue.follow()
        events = await self._views.events(caller.tenant, conversation_id, after_seq=after_seq)
        await self._queue.catch_up(receiver, conversation_id, events)
        return secret_of(self._key, receiver.tenant, receiver.id)

    async def _put(self, caller: Caller, asked: TaskReceiver) -> Webhook:
        self._sender.check("a2a", asked.url)
        # A new id, because with the id of a replaced receiver its messages would count as repeats.
        receiver_id = new_id("task-")
        found = await self._of_tenant(caller.tenant)
        replaced = [one for one, task in found if _is_named(task, asked.run_id, asked.config_id)]
        others = [(one, task) for one, task in found if one not in replaced]
        of_task = [one for one, task in others if task.run_id == asked.run_id]
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

    async def list(self, caller: Caller, run_id: str) -> tuple[TaskReceiver, ...]:
        found = await self._of_tenant(caller.tenant)
        return tuple(_described(one, task) for one, task in found if task.run_id == run_id)

    async def get(self, caller: Caller, run_id: str, config_id: str) -> TaskReceiver:
        found = [one for one in await self.list(caller, run_id) if one.config_id == config_id]
        if not found:
            raise NotFound("push notification configuration", config_id)
        return found[-1]

    async def delete(self, caller: Caller, run_id: str, config_id: str) -> None:
        """Delete a receiver, if there is one; pending messages to it are dropped."""
        for one, task in await self._of_tenant(caller.tenant):
            if _is_named(task, run_id, config_id):
                await self._store.bucket.delete(f"{caller.tenant}.{one.id}")

    async def _of_tenant(self, tenant: str) -> list[tuple[Webhook, Task]]:
        return [(one, one.task) for one in await self._store.receivers(tenant) if one.task is not None]


def _is_named(task: Task, run_id: str, config_id: str) -> bool:
    return (task.run_id, task.config_id) == (run_id, config_id)


def _described(receiver: Webhook, task: Task) -> TaskReceiver:
    return TaskReceiver(run_id=task.run_id, config_id=task.config_id, url=receiver.url)
