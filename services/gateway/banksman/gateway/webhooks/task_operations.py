"""The receivers of A2A's push notifications, as operations that the methods of A2A request by name."""

from __future__ import annotations

from typing import Annotated

from banksman.gateway.operation.caller import CHAT, READ
from banksman.gateway.operation.declaration import CONFLICT, MISSING, Operations
from banksman.gateway.operation.parameters import CallerDep, provided
from banksman.gateway.runs.runs import Runs
from banksman.gateway.runs.task_states import TaskReceiver
from banksman.gateway.webhooks.service import Webhooks

OF_A2A = "the methods of A2A for push notification configurations do the same"

Service = Annotated[Webhooks, provided(Webhooks)]
RunReads = Annotated[Runs, provided(Runs)]

operations = Operations("webhooks")


@operations.between_features("task_receiver.create", right=CHAT, errors=(MISSING, CONFLICT), reason=OF_A2A)
async def create_receiver(
    receiver: TaskReceiver, webhooks: Service, runs: RunReads, caller: CallerDep
) -> str:
    """Store a receiver, and return the secret with which messages to it are signed."""
    found = await runs.get(caller.tenant, receiver.run_id)
    # The run may have ended, or requested a decision, before the receiver was stored.
    first = max(0, found.view.first_seq - 1)
    return await webhooks.tasks.add(caller, receiver, found.conversation_id, after_seq=first)


@operations.between_features("task_receiver.read", right=READ, errors=(MISSING,), reason=OF_A2A)
async def read_receiver(run_id: str, config_id: str, webhooks: Service, caller: CallerDep) -> TaskReceiver:
    """Return a receiver, without its headers."""
    return await webhooks.tasks.get(caller, run_id, config_id)


@operations.between_features("task_receiver.list", right=READ, errors=(MISSING,), reason=OF_A2A)
async def list_receivers(
    run_id: str, webhooks: Service, runs: RunReads, caller: CallerDep
) -> list[TaskReceiver]:
    """Return the receivers of a task, without their headers."""
    await runs.get(caller.tenant, run_id)
    return list(await webhooks.tasks.list(caller, run_id))


@operations.between_features("task_receiver.delete", right=CHAT, errors=(MISSING,), reason=OF_A2A)
async def delete_receiver(
    run_id: str, config_id: str, webhooks: Service, runs: RunReads, caller: CallerDep
) -> None:
    """Delete a receiver; a missing one is no error."""
    await runs.get(caller.tenant, run_id)
    await webhooks.tasks.delete(caller, run_id, config_id)
