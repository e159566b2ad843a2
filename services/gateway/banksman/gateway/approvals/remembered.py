"""Decisions that apply to further calls: lists and withdraws them.

The log of a conversation has its remembered decisions. The bucket only names the logs to read: an entry is
written before a decision is stored, so no remembered decision is missing from the list.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from banksman.bus.connection import Bus
from banksman.bus.names import POLICIES
from banksman.bus.publish import RunQueue
from banksman.bus.storage.kv import Bucket
from banksman.contracts.approvals import ApprovalItem, Coverage, ItemDecision, Remember
from banksman.contracts.errors import Conflict, NotFound, NotReady
from banksman.contracts.ids import check_token, conversation_of_approval
from banksman.contracts.wire import JsonObject, Stored, Timestamp, Token
from banksman.contracts.work import ForgetDecision
from banksman.gateway.conversations.conversations import Conversations, read_all
from banksman.gateway.conversations.view import RememberedDecision
from banksman.gateway.conversations.views import Views
from banksman.gateway.operation.caller import APPROVE, Caller
from banksman.gateway.operation.declaration import EARLY, MISSING, Operations
from banksman.gateway.operation.parameters import CallerDep, Listing, provided
from banksman.gateway.quotas.backlog import Backlog
from banksman.runs.approval.policy import coverage

MAX_REMEMBERED = 500
"""Maximum remembered decisions of one tenant."""
WITHDRAWN_WITHIN_S = 5.0
"""Seconds that a withdrawal waits until it is in the log."""
RETRY_S = 0.05


class RememberedPlace(Stored):
    approval_id: Token


class RememberedCall(Stored):
    """A call whose repetitions a remembered decision applies to."""

    tool: str
    arguments: JsonObject
    """The arguments with the approver's edits."""
    covers: Coverage
    """The calls to which it applies; with `nothing`, a rejection applies to exactly the same call."""
    decision: Literal["approve", "reject"]


class ListedRemembered(Stored):
    """A decision that applies to further calls."""

    approval_id: Token
    conversation_id: Token
    title: str
    """The title of the conversation."""
    scope: Remember
    by: str
    at: Timestamp
    calls: tuple[RememberedCall, ...]


operations = Operations("policies")


@dataclass(frozen=True, slots=True)
class RememberedDecisions:
    bus: Bus
    conversations: Conversations
    views: Views
    queue: RunQueue
    backlog: Backlog

    async def note(self, tenant: str, approval_id: str) -> None:
        """Record that a decision which is about to be stored will be remembered."""
        bucket, key = self._bucket, _key(tenant, check_token(approval_id, "approval_id"))
        if len(await bucket.keys(_key(tenant))) >= MAX_REMEMBERED and await bucket.get(key) is None:
            raise Conflict(f"the tenant has {MAX_REMEMBERED} remembered decisions; withdraw some first")
        await bucket.create(key, RememberedPlace(approval_id=approval_id))

    @operations.add("remembered.list", "GET /context/remembered")
    async def list_remembered(self: Service, caller: CallerDep) -> Listing[ListedRemembered]:
        """List the decisions that apply to further calls, newest first."""
        places = [entry.value async for entry in self._bucket.entries(_key(caller.tenant))]
        listed = await read_all(partial(self._listed, caller), places)
        found = (one for one in listed if one is not None)
        items = sorted(found, key=lambda one: one.at, reverse=True)
        return Listing[ListedRemembered](items=tuple(items))

    @operations.add(
        "remembered.withdraw",
        "DELETE /context/remembered/{approval_id}",
        right=APPROVE,
        errors=(MISSING, EARLY),
    )
    async def withdraw_remembered(self: Service, approval_id: str, caller: CallerDep) -> None:
        """Withdraw a remembered decision: the next matching call waits for approval again."""
        # It is withdrawn once that is in the log. After `NotReady`, a repeated request continues to wait.
        conversation_id = conversation_of_approval(check_token(approval_id, "approval_id"))
        if conversation_id is None or await self._remembered(caller.tenant, approval_id) is None:
            raise NotFound("approval", approval_id)
        await self.backlog.check_signal(caller.tenant)
        signal = ForgetDecision(
            tenant=caller.tenant, conversation_id=conversation_id, approval_id=approval_id, by=caller.user
        )
        await self.queue.signal(signal, f"forget-{approval_id}")
        deadline = asyncio.get_running_loop().time() + WITHDRAWN_WITHIN_S
        while await self._remembered(caller.tenant, approval_id) is not None:
            if asyncio.get_running_loop().time() > deadline:
                raise NotReady(f"the decision on {approval_id!r} is being withdrawn", retry_after_s=1.0)
            await asyncio.sleep(RETRY_S)
        await self._bucket.delete(_key(caller.tenant, approval_id))

    @property
    def _bucket(self) -> Bucket[RememberedPlace]:
        return Bucket(self.bus, POLICIES, RememberedPlace)

    async def _listed(self, caller: Caller, place: RememberedPlace) -> ListedRemembered | None:
        conversation_id, tenant = conversation_of_approval(place.approval_id) or "", caller.tenant
        if self.conversations.limited.hides(caller, conversation_id):
            return None
        try:
            title = (await self.conversations.get(tenant, conversation_id)).title
            view = await self.views.read(tenant, conversation_id)
        except NotFound:
            await self._bucket.delete(_key(tenant, place.approval_id))
            return None
        decision = view.remembered.get(place.approval_id)
        if decision is None:
            # An open request may be decided at any moment, so its entry is not removed.
            if place.approval_id not in view.approvals:
                await self._bucket.delete(_key(tenant, place.approval_id))
            return None
        return ListedRemembered(
            approval_id=place.approval_id,
            conversation_id=conversation_id,
            title=title,
            scope=decision.resolved.remember or "run",
            by=decision.resolved.by,
            at=decision.at,
            calls=_calls(decision),
        )

    async def _remembered(self, tenant: str, approval_id: str) -> RememberedDecision | None:
        view = await self.conversations.view_of_approval(tenant, approval_id)
        return None if view is None else view.remembered.get(approval_id)


def _key(tenant: str, *approval_id: str) -> str:
    return ".".join((tenant, "remembered", *approval_id))


def _calls(decision: RememberedDecision) -> tuple[RememberedCall, ...]:
    decided = {one.tool_call_id: one for one in decision.resolved.decisions}
    return tuple(
        _call(item, one)
        for item in decision.requested.items
        if (one := decided.get(item.tool_call_id)) is not None
    )


def _call(item: ApprovalItem, decided: ItemDecision) -> RememberedCall:
    arguments = item.arguments if decided.arguments is None else decided.arguments
    covers = coverage(item.name, arguments, decided.covers)
    return RememberedCall(tool=item.name, arguments=arguments, covers=covers, decision=decided.decision)


Service = Annotated[RememberedDecisions, provided(RememberedDecisions)]
