"""Requests of clients: checks without stored state, and idempotency.

A request id identifies one body and the ids that were returned for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from pydantic import BaseModel

from banksman.bus.storage.kv import Entry
from banksman.contracts.errors import BadInput, Conflict, NotReady
from banksman.contracts.frames import (
    ApprovalDecision,
    ChatSend,
    ConversationCreate,
    Envelope,
    InputReply,
    RunCancel,
    WorkflowStart,
)
from banksman.contracts.ids import digest, new_id, run_id_for
from banksman.contracts.messages import Content, ImagePart, TextPart
from banksman.contracts.urls import UrlRefused
from banksman.contracts.wire import Stored
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.parameters import UNREPEATED
from banksman.runtime.addresses import public_url

Request = ConversationCreate | ChatSend | RunCancel | ApprovalDecision | WorkflowStart | InputReply


def check_conversation(given: str | None, named: str | None) -> None:
    """Check that the conversation of a frame's envelope is that of the frame's run, approval or input."""
    if named is not None and given not in (None, named):
        raise BadInput("conversation_id", given, f"{named!r}, the conversation of the other id, or nothing")


def check_content(content: Content) -> None:
    """Check that a message is not empty, because models refuse empty messages."""
    parts = (TextPart(text=content),) if isinstance(content, str) else content
    if not any(part.text.strip() if isinstance(part, TextPart) else True for part in parts):
        given = content if isinstance(content, str) else [part.model_dump() for part in content]
        raise BadInput("content", given, "text, an image or a file")
    for part in parts:
        if isinstance(part, ImagePart) and part.is_link:
            _check_image(part.url)


def _check_image(url: str) -> None:
    try:
        public_url(url)
    except UrlRefused as refused:
        # A model server in the operator's network would fetch it there.
        expected = f"an image at a public address, or as a data URL; {refused}"
        raise BadInput("content", url, expected) from refused


class RequestRecord(Stored):
    """A request that was accepted."""

    body_digest: str
    """SHA-256 of the request's body. The same id with another body is a conflict."""
    ids: dict[str, str]
    """The ids that were assigned to the request."""
    meaning_digest: str | None = None
    """SHA-256 of the body without fields that have their default value. Gateways of two versions compute the
    same digest, even if one of them has more fields. None in records of older gateways."""

    def matches(self, other: RequestRecord) -> bool:
        if self.meaning_digest is None or other.meaning_digest is None:
            return self.body_digest == other.body_digest
        return self.meaning_digest == other.meaning_digest


class RequestBucket(Protocol):
    async def create(self, key: str, value: RequestRecord) -> int | None:
        """Store a record; return None if the key has one."""
        ...

    async def get(self, key: str) -> Entry[RequestRecord] | None: ...


class DerivedIds:
    """Derives ids from one source, for a start that may be repeated at any later time."""

    def __init__(self, source: str) -> None:
        self._source = source

    def new(self, prefix: str) -> str:
        return f"{prefix}{digest(f'{prefix}/{self._source}'.encode())[:21]}"

    def new_run(self, conversation_id: str) -> str:
        return f"{conversation_id}-{digest(f'{conversation_id}/{self._source}'.encode())[:12]}"

    async def once(
        self,
        tenant: str,
        request_id: str,
        body: BaseModel,
        ids: Mapping[str, str],
        *,
        exclude: set[str] | None = None,
    ) -> Mapping[str, str]:
        """Return `ids`: a repeat derives the same ids, so nothing needs to be stored."""
        return ids


class StoredRequests:
    """The accepted requests of all tenants, keys `{tenant}.{digest of the request id}`."""

    def __init__(self, bucket: RequestBucket) -> None:
        self._bucket = bucket

    def new(self, prefix: str) -> str:
        return new_id(prefix)

    def new_run(self, conversation_id: str) -> str:
        return run_id_for(conversation_id)

    async def once(
        self,
        tenant: str,
        request_id: str,
        body: BaseModel,
        ids: Mapping[str, str],
        *,
        exclude: set[str] | None = None,
    ) -> Mapping[str, str]:
        """Return `ids` for a new request, and the ids of the first request for a repeated one.

        Args:
            request_id: Unique within the tenant.
            exclude: Fields of the body that may differ between a request and its repeat.

        Raises:
            Conflict: The id was used with another body.
            NotReady: The stored record expired between the write and the read.
        """
        record = RequestRecord(
            body_digest=digest(body.model_dump_json(exclude=exclude).encode()),
            ids=dict(ids),
            meaning_digest=digest(body.model_dump_json(exclude=exclude, exclude_defaults=True).encode()),
        )
        key = f"{tenant}.{digest(request_id.encode())}"
        if await self._bucket.create(key, record) is not None:
            return ids
        entry = await self._bucket.get(key)
        if entry is None:
            raise NotReady("the request id expired just now")
        stored = entry.value
        if not stored.matches(record):
            raise Conflict("the request id was used before with another body")
        return stored.ids

    async def once_created(
        self, caller: Caller, kind: str, request_id: str, body: BaseModel, ids: Mapping[str, str]
    ) -> Mapping[str, str]:
        """Return as `once` the ids of a user's request that creates something of a kind."""
        key = digest(f"{caller.user}\n{kind}\n{request_id}".encode())
        return await self.once(caller.tenant, key, body, ids)


RequestIds = StoredRequests | DerivedIds
"""Assigns ids to requests: a repeated request gets the ids of the first one."""


async def ids_once(
    requests: RequestIds, caller: Caller, request: Request, ids: Mapping[str, str]
) -> Mapping[str, str]:
    if request.id.startswith(UNREPEATED):
        # No client can repeat the request, so two durable writes are saved for a message in a new
        # conversation.
        return ids
    key = request_key(caller, request)
    exclude = {"id", "conversation_id"} if isinstance(request, Envelope) else {"id"}
    return await requests.once(caller.tenant, key, request, ids, exclude=exclude)


def request_key(caller: Caller, request: Request) -> str:
    """Return the idempotency key of a request within its tenant.

    The key includes the conversation, run or approval: a client may number its frames per conversation.
    """
    match request:
        case ChatSend():
            scope = request.conversation_id
        case RunCancel():
            scope = request.run_id
        case ApprovalDecision():
            scope = request.approval_id
        case InputReply():
            scope = request.request_id
        case _:
            scope = ""
    return digest(f"{caller.user}\n{scope}\n{request.id}".encode())
