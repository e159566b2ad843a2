"""What the protocol's door asks of the world, over the bus."""

from __future__ import annotations

from banksman.bus import slots
from banksman.bus.connection import Bus
from banksman.bus.kv import Bucket
from banksman.bus.names import IDEMPOTENCY
from banksman.bus.publish import durable
from banksman.contracts import subjects
from banksman.contracts.errors import NotReady, Poison
from banksman.contracts.ids import digest
from banksman.contracts.registry import StartWorkflow
from banksman.contracts.wire import Stored
from banksman.contracts.work import ApprovalReply, ApprovalRequest, RunSignal, StartRun
from banksman.gateway.service.door import RequestNote
from banksman.runs.stores import StoredWork


class _StoredNote(Stored):
    body_digest: str
    ids: dict[str, str]
    meaning_digest: str | None = None


class Requests:
    """KV `idempotency`: what was answered to a request id, for 24 hours."""

    def __init__(self, bus: Bus) -> None:
        self._bucket = Bucket(bus, IDEMPOTENCY, _StoredNote)

    async def remember(self, tenant: str, request_id: str, note: RequestNote) -> RequestNote:
        """Store a note unless one is stored; return what is stored."""
        key = f"{tenant}.{digest(request_id.encode())}"
        stored = _StoredNote(
            body_digest=note.body_digest, ids=dict(note.ids), meaning_digest=note.meaning_digest
        )
        if await self._bucket.create(key, stored) is not None:
            return note
        entry = await self._bucket.get(key)
        if entry is None:
            raise NotReady("the request id expired just now")
        return RequestNote(entry.value.body_digest, entry.value.ids, entry.value.meaning_digest)


class Intake:
    """The streams of runs and workflows, as a gateway may use them."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._work = StoredWork(bus)

    async def start(self, work: StartRun) -> None:
        """Store a start under the message id `start:{run}`."""
        await self._work.publish(work)

    async def signal(self, signal: RunSignal, request_id: str) -> None:
        """Store a signal under the message id `signal:{request}`, and wake the owner."""
        subject = subjects.run_signal(signal.tenant, signal.conversation_id)
        await durable(self._bus, subject, _encoded(signal), msg_id=f"signal:{request_id}")
        await self._work.nudge(signal.tenant, signal.conversation_id)

    async def start_workflow(self, work: StartWorkflow) -> None:
        """Store a workflow's start under the message id `workflow:{run}`."""
        subject = subjects.workflow_run(work.workflow, work.tenant, work.conversation_id)
        await durable(self._bus, subject, _encoded(work), msg_id=f"workflow:{work.run_id}")


class ApprovalStore:
    """The slots of approvals, as a gateway may use them."""

    def __init__(self, bus: Bus) -> None:
        self._slots = slots.ApprovalSlots(bus)

    async def read(
        self, tenant: str, approval_id: str
    ) -> tuple[ApprovalRequest | None, ApprovalReply | None]:
        """The stored question and answer, from the leader.

        Raises:
            NotReady: what is stored cannot be read; agents put it away.
        """
        try:
            return await self._slots.approval(tenant, approval_id)
        except Poison as poison:
            raise _open_again(approval_id) from poison

    async def settle(self, reply: ApprovalReply) -> ApprovalReply:
        """Store an answer unless one is stored; return what the slot holds.

        Raises:
            NotReady: what is stored cannot be read; agents put it away.
        """
        try:
            return await self._slots.reply(reply)
        except Poison as poison:
            raise _open_again(reply.approval_id) from poison

    async def pending(self, tenant: str, *, limit: int, after: int = 0) -> list[tuple[int, ApprovalRequest]]:
        """Up to `limit` of the tenant's questions without an answer, oldest first, each with its position."""
        return await self._slots.pending(tenant, limit=limit, after=after)


def _open_again(approval_id: str) -> NotReady:
    return NotReady(f"approval {approval_id!r} is open again in a moment", retry_after_s=0.5)


def _encoded(work: RunSignal | StartWorkflow) -> bytes:
    return work.model_dump_json(by_alias=True).encode()
