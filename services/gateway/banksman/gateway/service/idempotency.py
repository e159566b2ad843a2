"""Idempotency of requests: a request id stands for one body and the ids that were returned for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from banksman.bus.connection import Bus
from banksman.bus.kv import Bucket
from banksman.bus.names import IDEMPOTENCY
from banksman.contracts.errors import Conflict, NotReady
from banksman.contracts.ids import digest
from banksman.contracts.wire import Stored


class RequestRecord(Stored):
    """A request that was accepted."""

    body_digest: str
    """SHA-256 of the request's body. Another body under the same id is a conflict."""
    ids: dict[str, str]
    """The ids that the request got."""
    meaning_digest: str | None = None
    """SHA-256 of the body without fields that have their default value. Gateways of two versions compute the
    same digest, although one of them knows more fields. None in records of older gateways."""

    def matches(self, other: RequestRecord) -> bool:
        """Return whether both records are of the same request."""
        if self.meaning_digest is None or other.meaning_digest is None:
            return self.body_digest == other.body_digest
        return self.meaning_digest == other.meaning_digest


class RequestStore(Protocol):
    """Stores request records for 24 hours."""

    async def remember(self, tenant: str, request_id: str, record: RequestRecord) -> RequestRecord:
        """Store a record unless the request id has one; return the stored record."""
        ...


class StoredRequests:
    """Request records in KV `idempotency`, keys `{tenant}.{digest of the request id}`."""

    def __init__(self, bus: Bus) -> None:
        self._bucket = Bucket(bus, IDEMPOTENCY, RequestRecord)

    async def remember(self, tenant: str, request_id: str, record: RequestRecord) -> RequestRecord:
        """Store a record unless the request id has one; return the stored record.

        Raises:
            NotReady: The stored record expired between the write and the read.
        """
        key = f"{tenant}.{digest(request_id.encode())}"
        if await self._bucket.create(key, record) is not None:
            return record
        entry = await self._bucket.get(key)
        if entry is None:
            raise NotReady("the request id expired just now")
        return entry.value


async def once(
    store: RequestStore,
    tenant: str,
    request_id: str,
    body: bytes,
    ids: Mapping[str, str],
    *,
    meaning: bytes | None = None,
) -> Mapping[str, str]:
    """Return the ids of a request: `ids` for a new request, the stored ids for a repeated one.

    Args:
        store: The request records.
        tenant: The tenant of the request.
        request_id: The id of the request, unique within the tenant.
        body: The request's body.
        ids: The ids that a new request gets.
        meaning: The body without fields that have their default value; None if it has no such form.

    Raises:
        Conflict: The id was used with another body.
    """
    record = RequestRecord(
        body_digest=digest(body),
        ids=dict(ids),
        meaning_digest=None if meaning is None else digest(meaning),
    )
    stored = await store.remember(tenant, request_id, record)
    if not stored.matches(record):
        raise Conflict(f"request id {request_id!r} was used before with another body")
    return stored.ids
