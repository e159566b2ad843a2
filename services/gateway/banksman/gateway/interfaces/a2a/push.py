"""Push notification configurations of A2A: receivers of notifications, each for one run."""

from __future__ import annotations

from dataclasses import dataclass

from banksman.contracts.ids import new_id
from banksman.gateway.a2a_tasks import JsonDict, TaskNotifications, TaskReceiver
from banksman.gateway.interfaces.a2a.errors import PUSH_NOT_SUPPORTED, RpcError
from banksman.gateway.interfaces.a2a.models import ListConfigs, NamedConfig, PushTarget
from banksman.gateway.operation.caller import Caller
from banksman.gateway.service.gateway import Gateway

SIGNATURE = "standard-webhooks"
"""The scheme under which a new configuration returns the key of its signatures."""


@dataclass(frozen=True, slots=True)
class PushConfigs:
    """The methods, for one caller. Each raises `RpcError` if this gateway sends no notifications."""

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
        first = max(0, found.view.first_seq - 1)
        secret = await self._notifications.add(self.caller, receiver, found.conversation_id, after_seq=first)
        return {**_config(receiver), "authentication": {"scheme": SIGNATURE, "credentials": secret}}

    async def get(self, named: NamedConfig) -> JsonDict:
        """Return a configuration, without secrets."""
        return _config(await self._notifications.get(self.caller, named.task_id, named.id))

    async def list(self, wanted: ListConfigs) -> JsonDict:
        """Return the configurations of a task."""
        await self.gateway.runs.get(self.caller.tenant, wanted.task_id)
        found = await self._notifications.list(self.caller, wanted.task_id)
        return {"configs": [_config(one) for one in found]}

    async def delete(self, named: NamedConfig) -> JsonDict:
        """Delete a configuration; a missing one is no error, by the specification."""
        self.caller.need("chat")
        await self.gateway.runs.get(self.caller.tenant, named.task_id)
        await self._notifications.delete(self.caller, named.task_id, named.id)
        return {}

    @property
    def _notifications(self) -> TaskNotifications:
        if self.gateway.task_notifications is None:
            raise RpcError(PUSH_NOT_SUPPORTED, "this gateway sends no push notifications")
        return self.gateway.task_notifications


def _headers(config: PushTarget) -> dict[str, str]:
    headers = {"x-a2a-notification-token": config.token} if config.token else {}
    wanted = config.authentication
    if wanted is not None and wanted.credentials:
        headers["authorization"] = f"{wanted.scheme} {wanted.credentials}"
    return headers


def _config(receiver: TaskReceiver) -> JsonDict:
    return {"taskId": receiver.run_id, "id": receiver.config_id, "url": receiver.url}
