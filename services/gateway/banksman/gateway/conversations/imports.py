"""Import of files of conversations: our exports, and those of ChatGPT, Claude and Open WebUI."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query, Request

from banksman.bus.publish import RunQueue
from banksman.contracts.errors import BadInput, BanksmanError, Unavailable
from banksman.contracts.ids import digest
from banksman.contracts.wire import Stored, Token
from banksman.gateway.conversations.bodies import ExportedConversation
from banksman.gateway.conversations.conversations import Conversations, new_record
from banksman.gateway.conversations.importing.exports import (
    ReadConversation,
    ReadConversations,
    ReadRequest,
)
from banksman.gateway.operation.caller import CHAT, Caller
from banksman.gateway.operation.declaration import CONFLICT, Audit, BodyLimit, Operations
from banksman.gateway.operation.parameters import CallerDep, RequestId, StrictBody, provided
from banksman.gateway.quotas.backlog import Backlog
from banksman.gateway.runs.idempotency import StoredRequests
from banksman.runs.ports import Clock
from banksman.runtime.limited_processes import LimitedProcesses, LimitExceeded, ProcessLimits

MAX_FILE_BYTES = 64 * 1024 * 1024
UPLOAD_S = 120.0
"""Seconds in which a file must arrive, because few are received at a time."""
LIMITS = ProcessLimits(cpu_s=20.0, timeout_s=60.0, memory_bytes=1024 * 1024 * 1024)
FILE: dict[str, Any] = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


class ImportedConversation(Stored):
    """What was imported of one conversation of a file."""

    title: str
    product: str
    """`banksman`, `chatgpt`, `claude` or `open-webui`; empty if unknown."""
    conversation_id: Token | None
    """The new conversation; null with `error`."""
    runs: int
    left_out: dict[str, int]
    """How many parts were left out, by the names of their kinds or files."""
    error: str | None
    """Why it was not imported; null if it was."""


class ImportedFile(Stored):
    """The conversations of a file, in its order."""

    items: tuple[ImportedConversation, ...]
    created: tuple[Token, ...]
    """The new conversations."""
    next: int | None
    """`start` of the next request with the same file; null at the end."""


class _Source(Stored):
    """What identifies a request to import: a repeat has the same."""

    digest: str
    start: int


IMPORTED = Audit.of("conversation.import", ("created",))
operations = Operations("conversations")


@dataclass(frozen=True, slots=True)
class Imports:
    conversations: Conversations
    requests: StoredRequests
    queue: RunQueue
    backlog: Backlog
    clock: Clock
    processes: LimitedProcesses

    @operations.add(
        "conversation.import",
        "POST /context/conversations/import",
        body=BodyLimit.FILE,
        errors=(CONFLICT,),
        audit=IMPORTED,
        not_over_nats="a file may be larger than a message: over NATS it takes one conversation",
        openapi_extra={"requestBody": {"required": True, "content": FILE}},
    )
    async def import_conversations(
        self: Service,
        request: Request,
        caller: CallerDep,
        request_id: RequestId,
        start: Annotated[int, Query(ge=0, description="`next` of the request before.")] = 0,
    ) -> ImportedFile:
        """Create conversations from a file: an export of this product, ChatGPT, Claude or Open WebUI.

        JSON, or the zip file of ChatGPT or Claude; at most 64 MiB, and 192 MiB of JSON. Calls, results and
        decisions are shown as the file states them; no decision applies to further calls.
        """
        async with self.processes.turn(caller.tenant):
            return await self._imported(caller, request_id, await _received(request), start)

    @operations.over_nats(
        "conversation.import",
        right=CHAT,
        errors=(CONFLICT,),
        audit=IMPORTED,
        not_over_http="declared beside it, with a whole file as its body",
    )
    async def import_exported(
        self: Service, body: StrictBody[ExportedConversation], caller: CallerDep, request_id: RequestId
    ) -> ImportedFile:
        """Create a conversation from an export of this product."""
        async with self.processes.turn(caller.tenant):
            return await self._imported(caller, request_id, body.model_dump_json().encode(), 0)

    async def _imported(self, caller: Caller, request_id: str, data: bytes, start: int) -> ImportedFile:
        await self.backlog.logs.check(caller.tenant)
        source = _Source(digest=digest(data), start=start)
        ids = await self.requests.once_created(
            caller, "import", request_id, source, {"import": self.requests.new("i")}
        )
        wanted = ReadRequest(tenant=caller.tenant, source=ids["import"], start=start)
        try:
            reply = await self.processes.exchange(wanted.model_dump_json().encode(), b"\n", data)
        except LimitExceeded as limit:
            expected = f"a file that can be read in {LIMITS.cpu_s:g} s ({limit}); import it in parts"
            raise BadInput("file", f"{len(data)} bytes", expected) from limit
        head, _, parts = reply.partition(b"\n")
        read = ReadConversations.model_validate_json(head)
        if read.error is not None:
            raise BadInput("file", None, read.error)
        return await self._created(caller, read, parts, start)

    async def _created(
        self, caller: Caller, read: ReadConversations, parts: bytes, start: int
    ) -> ImportedFile:
        items, next_start = list[ImportedConversation](), read.next
        at = 0
        for one in read.items:
            end = at + sum(one.parts)
            try:
                if one.error is None:
                    await self._create(caller, one, parts[at:end])
            except BanksmanError:
                if not items:
                    raise
                next_start = start + len(items)
                break
            items.append(_result(one))
            at = end
        created = tuple(one.conversation_id for one in items if one.conversation_id is not None)
        return ImportedFile(items=tuple(items), created=created, next=next_start)

    async def _create(self, caller: Caller, read: ReadConversation, data: bytes) -> None:
        tenant, conversation_id = caller.tenant, read.conversation_id
        record = new_record(conversation_id, read.title, by=caller.user, now=self.clock.now())
        async with self.backlog.starts.place(tenant):
            await self.conversations.create(tenant, record)
            at = 0
            for number, size in enumerate(read.parts):
                await self.backlog.check_signal(tenant, size)
                part, at = data[at : at + size], at + size
                name = f"import-{conversation_id}-{number}"
                await self.queue.stored_signal(tenant, conversation_id, part, name)


Service = Annotated[Imports, provided(Imports)]


async def _received(request: Request) -> bytes:
    pieces, size = list[bytes](), 0
    try:
        async with asyncio.timeout(UPLOAD_S):
            async for piece in request.stream():
                size += len(piece)
                if size > MAX_FILE_BYTES:
                    raise BadInput("file", "more bytes", f"at most {MAX_FILE_BYTES} bytes")
                pieces.append(piece)
    except TimeoutError as error:
        raise Unavailable(f"the file did not arrive within {UPLOAD_S:g} s") from error
    return b"".join(pieces)


def _result(read: ReadConversation) -> ImportedConversation:
    return ImportedConversation(
        title=read.title,
        product=read.product,
        conversation_id=None if read.error else read.conversation_id,
        runs=read.runs,
        left_out=dict(read.left_out),
        error=read.error,
    )
