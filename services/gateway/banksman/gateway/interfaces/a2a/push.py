"""Push notification configurations of A2A: receivers of the webhook queue, each for one run."""

from __future__ import annotations

from dataclasses import dataclass

from banksman.contracts.errors import NotFound
from banksman.contracts.ids import new_id
from banksman.gateway.interfaces.a2a.models import ListConfigs, NamedConfig, PushTarget
from banksman.gateway.interfaces.a2a.task_states import JsonDict
from banksman.gateway.operation.caller import Caller
from banksman.gateway.service.gateway import Gateway
from banksman.gateway.webhooks.models import Webhook
from banksman.gateway.webhooks.task_receivers import TaskReceiver

SIGNATURE = "standard-webhooks"
"""The scheme under which a new configuration returns the key of its signatures."""


@dataclass(frozen=True, slots=True)
class PushConfigs:
    """The methods, for one caller."""

    gateway: Gateway
    caller: Caller

    async def create(self, task_id: str, config: PushTarget) -> JsonDict:
        """Store a configuration. Only this response has the key with which its messages are signed."""
        self.caller.need("chat")
        found = await self.gateway.runs.get(self.caller.tenant, task_id)
        receiver = TaskReceiver(
            run_id=task_id,
            config_id=config.id or new_id("p"),
            url=config.url,
            headers=_headers(config),
        )
        secret, stored = await self.gateway.webhooks.notify_of_task(self.caller, receiver)
        # The run may have ended, or requested a decision, before the receiver was stored.
        first = max(0, found.view.first_seq - 1)
        events = await self.gateway.views.events(self.caller.tenant, found.conversation_id, after_seq=first)
        await self.gateway.webhooks.catch_up(stored, found.conversation_id, events)
        return {**_config(stored), "authentication": {"scheme": SIGNATURE, "credentials": secret}}

    async def get(self, named: NamedConfig) -> JsonDict:
        """Return a configuration, without secrets."""
        receivers = self.gateway.webhooks.tasks
        return _config(await receivers.get(self.caller.tenant, named.task_id, named.id))

    async def list(self, wanted: ListConfigs) -> JsonDict:
        """Return the configurations of a task."""
        await self.gateway.runs.get(self.caller.tenant, wanted.task_id)
        found = await self.gateway.webhooks.tasks.list(self.caller.tenant, wanted.task_id)
        return {"configs": [_config(one) for one in found]}

    async def delete(self, named: NamedConfig) -> JsonDict:
        """Delete a configuration; a missing one is no error, by the specification."""
        self.caller.need("chat")
        await self.gateway.runs.get(self.caller.tenant, named.task_id)
        await self.gateway.webhooks.tasks.delete(self.caller.tenant, named.task_id, named.id)
        return {}


def _headers(config: PushTarget) -> dict[str, str]:
    headers = {"x-a2a-notification-token": config.token} if config.token else {}
    wanted = config.authentication
    if wanted is not None and wanted.credentials:
        headers["authorization"] = f"{wanted.scheme} {wanted.credentials}"
    return headers


def _config(receiver: Webhook) -> JsonDict:
    if receiver.task is None:
        raise NotFound("push notification configuration", receiver.id)
    return {"taskId": receiver.task.run_id, "id": receiver.task.config_id, "url": receiver.url}
