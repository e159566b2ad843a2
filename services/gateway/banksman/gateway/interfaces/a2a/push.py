"""Push notification configurations of A2A: receivers of a task's updates, which the webhooks store.

A gateway without webhooks has no receivers, as its agent card says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from banksman.contracts.ids import new_id
from banksman.gateway.interfaces.a2a.models import (
    PUSH_NOT_SUPPORTED,
    ListConfigs,
    NamedConfig,
    PushTarget,
    RpcError,
)
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.runs.task_states import JsonDict, TaskReceiver

SIGNATURE = "standard-webhooks"
"""The scheme under which a new configuration returns the key of its signatures."""


def supports_push(dispatcher: Dispatcher) -> bool:
    return dispatcher.has("task_receiver.create")


@dataclass(frozen=True, slots=True)
class PushConfigs:
    """The methods, for one caller.

    Each raises `RpcError` if this gateway has no webhooks.
    """

    dispatcher: Dispatcher
    caller: Caller

    async def create(self, task_id: str, config: PushTarget) -> JsonDict:
        """Store a configuration. Only this response has the key with which its messages are signed."""
        receiver = TaskReceiver(
            run_id=task_id, config_id=config.id or new_id("p"), url=config.url, headers=_headers(config)
        )
        secret: str = await self._request("task_receiver.create", receiver=receiver)
        return {**_config(receiver), "authentication": {"scheme": SIGNATURE, "credentials": secret}}

    async def get(self, named: NamedConfig) -> JsonDict:
        """Return a configuration, without secrets."""
        return _config(await self._request("task_receiver.read", run_id=named.task_id, config_id=named.id))

    async def list(self, wanted: ListConfigs) -> JsonDict:
        found: list[TaskReceiver] = await self._request("task_receiver.list", run_id=wanted.task_id)
        return {"configs": [_config(one) for one in found]}

    async def delete(self, named: NamedConfig) -> JsonDict:
        """Delete a configuration; a missing one is no error, by the specification."""
        await self._request("task_receiver.delete", run_id=named.task_id, config_id=named.id)
        return {}

    async def _request(self, name: str, **arguments: Any) -> Any:
        if not supports_push(self.dispatcher):
            raise RpcError(PUSH_NOT_SUPPORTED, "this server sends no push notifications")
        return await self.dispatcher.request(name, self.caller, **arguments)


def _headers(config: PushTarget) -> dict[str, str]:
    headers = {"x-a2a-notification-token": config.token} if config.token else {}
    wanted = config.authentication
    if wanted is not None and wanted.credentials:
        headers["authorization"] = f"{wanted.scheme} {wanted.credentials}"
    return headers


def _config(receiver: TaskReceiver) -> JsonDict:
    return {"taskId": receiver.run_id, "id": receiver.config_id, "url": receiver.url}
