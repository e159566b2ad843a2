"""The audit trail: who changed what of a tenant, and when."""

from __future__ import annotations

import csv
import io
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal

from fastapi import Depends, Query, Response
from pydantic import ValidationError

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.messages import StoredMessage
from banksman.bus.names import AUDIT, api
from banksman.bus.publish import record_action
from banksman.contracts import subjects
from banksman.contracts.administration import MAX_TARGET_CHARS, AuditEntry, AuditInterface
from banksman.contracts.ids import check_token, new_id
from banksman.contracts.subjects import ANY
from banksman.contracts.wire import JsonValue, Stored, Timestamp
from banksman.gateway.feature import Feature, Foundation
from banksman.gateway.operation.caller import ADMIN, Caller
from banksman.gateway.operation.declaration import FORBIDDEN, Audit, Operations
from banksman.gateway.operation.parameters import MAX_POSITION, CallerDep, provided
from banksman.gateway.operation.streaming import StreamedResponse
from banksman.runs.ports import Clock

MAX_ENTRIES = 200
MAX_READ = 2_000
"""Approximate maximum of entries that a request reads; a filter may match few of them."""
FIRST_WINDOW = 500
"""Number of messages, of all tenants, in the first search for the newest entries."""
MAX_TEXT_CHARS, MAX_LIST_ITEMS = 200, 20
EXPORTED_AT_ONCE = 200
COLUMNS = ("ts", "tenant", "actor", "actor_tenant", "interface", "action", "target", "details")
ExportFormat = Literal["jsonl", "csv"]


class ListedEntry(AuditEntry):
    """An entry with its position in the trail."""

    id: int


class AuditPage(Stored):
    """Entries of the audit trail, newest first."""

    items: tuple[ListedEntry, ...]
    next: int | None
    """`after` of the next page; null at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    tenant: str
    """A tenant, or `*` for all."""
    actor: str | None = None
    action: str | None = None
    """`key.created`, or `key` for all actions on keys."""
    since: datetime | None = None
    until: datetime | None = None

    @property
    def subject(self) -> str:
        kind, _, done = (self.action or "").partition(".")
        return subjects.audit(self.tenant, kind or ANY, done or ANY)

    def matches(self, entry: AuditEntry) -> bool:
        """Return whether the filter selects an entry of its subjects."""
        return (
            (self.actor is None or entry.actor == self.actor)
            and (self.since is None or entry.ts >= self.since)
            and (self.until is None or entry.ts < self.until)
        )


@dataclass(frozen=True, slots=True)
class Trail:
    bus: Bus
    clock: Clock

    async def record(
        self,
        caller: Caller,
        action: Audit,
        interface: AuditInterface,
        *,
        tenant: str,
        target: str,
        reply: Mapping[str, Any],
        request_id: str | None = None,
    ) -> None:
        """Store the entry of a successful request; a repeat of the request id stores no second entry."""
        entry = AuditEntry(
            ts=self.clock.now(),
            tenant=tenant,
            actor=caller.user,
            actor_tenant=None if tenant == caller.tenant else caller.tenant,
            interface=interface,
            action=action.action,
            target=target[:MAX_TARGET_CHARS],
            details={name: _short(reply[name]) for name in action.details if name in reply},
        )
        await record_action(self.bus, entry, msg_id=f"{tenant}:{action.action}:{request_id or new_id('au-')}")

    async def page(self, wanted: AuditFilter, *, after: int | None, limit: int) -> AuditPage:
        """Return the newest entries before `after`. A page that is not full may have a next page."""
        state = (await jetstream.call(self.bus, api("STREAM.INFO", AUDIT)))["state"]
        first, end = int(state["first_seq"]), int(state["last_seq"]) + 1
        end = end if after is None else min(after, end)
        size, read = FIRST_WINDOW, 0
        found: list[ListedEntry] = []
        while end > first and len(found) < limit and read < MAX_READ:
            begin = max(first, end - size)
            window = [entry async for entry in self._between(wanted.subject, begin, end)]
            found[:0] = [entry for entry in window if wanted.matches(entry)]
            read, end = read + len(window), begin
            if wanted.since is not None and window and window[0].ts < wanted.since:
                end = first
            # Most messages are of other tenants, which the broker filters, so a larger window costs no more.
            size *= 4 if len(window) < size // 8 else 1
        if len(found) > limit:
            found, end = found[-limit:], found[-limit].id
        return AuditPage(items=tuple(reversed(found)), next=end if end > first else None)

    async def export(self, wanted: AuditFilter, form: ExportFormat) -> AsyncIterator[bytes]:
        """Return all entries, oldest first, as JSON lines or as CSV with a line of names."""
        pieces = self._exported(wanted, form)
        # Read the first piece before the response begins: afterwards the response cannot become an error.
        first = await anext(pieces)
        return _following(first, pieces)

    async def _exported(self, wanted: AuditFilter, form: ExportFormat) -> AsyncIterator[bytes]:
        lines = [_csv_line(COLUMNS)] if form == "csv" else []
        async for message in jetstream.read(self.bus, AUDIT, wanted.subject, current=True):
            entry = _entry(message)
            if entry is not None and wanted.matches(entry):
                lines.append(_csv_line(_cells(entry)) if form == "csv" else _json_line(entry))
            if len(lines) >= EXPORTED_AT_ONCE:
                yield b"".join(lines)
                lines.clear()
        yield b"".join(lines)

    async def _between(self, subject: str, begin: int, end: int) -> AsyncIterator[ListedEntry]:
        async for message in jetstream.read(self.bus, AUDIT, subject, after=begin - 1):
            if message.stream_seq >= end:
                return
            if (entry := _entry(message)) is not None:
                yield entry


async def _following(first: bytes, others: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in others:
        yield piece


def _entry(message: StoredMessage) -> ListedEntry | None:
    try:
        entry = AuditEntry.model_validate_json(message.data)
    except ValidationError:
        # A newer version wrote the entry: only gateways and the operator may write the stream.
        return None
    return ListedEntry(id=message.stream_seq, **dict(entry))


def _short(value: JsonValue) -> JsonValue:
    """Return a value of bounded size, because the trail describes changes and does not store contents."""
    match value:
        case str():
            return value[:MAX_TEXT_CHARS]
        case list():
            return [_short(item) for item in value[:MAX_LIST_ITEMS] if not isinstance(item, list | dict)]
        case dict():
            return None
        case _:
            return value


def _json_line(entry: ListedEntry) -> bytes:
    return entry.model_dump_json().encode() + b"\n"


def _cells(entry: ListedEntry) -> tuple[str, ...]:
    values = entry.model_dump(mode="json")
    details = "; ".join(f"{name}: {value}" for name, value in entry.details.items())
    return tuple(_cell(details if name == "details" else str(values[name] or "")) for name in COLUMNS)


def _cell(text: str) -> str:
    """Return the text of a cell that no spreadsheet evaluates as a formula.

    https://owasp.org/www-community/attacks/CSV_Injection
    """
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _csv_line(cells: tuple[str, ...]) -> bytes:
    line = io.StringIO()
    csv.writer(line).writerow(cells)
    return line.getvalue().encode()


Service = Annotated[Trail, provided(Trail)]
Actor = Annotated[str | None, Query(max_length=200)]
Action = Annotated[
    str | None,
    Query(
        pattern=r"^[a-z_]{1,32}(\.[a-z_]{1,32})?$",
        description="`key.created`, or `key` for all actions on keys.",
    ),
]
NamedTenant = Annotated[
    str | None, Query(max_length=64, description="For operators: another tenant, or `*` for all.")
]
After = Annotated[int | None, Query(ge=0, le=MAX_POSITION, description="`next` of the previous page.")]
Limit = Annotated[int, Query(ge=1, le=MAX_ENTRIES)]
MEDIA_TYPES: dict[ExportFormat, str] = {
    "jsonl": "application/jsonl",
    "csv": "text/csv; charset=utf-8; header=present",
}

operations = Operations("audit", right=ADMIN)


async def requested(
    caller: CallerDep,
    actor: Actor = None,
    action: Action = None,
    since: Timestamp | None = None,
    until: Timestamp | None = None,
    tenant: NamedTenant = None,
) -> AuditFilter:
    """Return the filter of a request; raise `Forbidden` for other tenants, except to an operator."""
    if tenant is not None and tenant != caller.tenant:
        caller.need("operator")
        tenant = tenant if tenant == ANY else check_token(tenant, "tenant")
    return AuditFilter(tenant=tenant or caller.tenant, actor=actor, action=action, since=since, until=until)


@operations.add("audit.list", "GET /v1/audit", errors=(FORBIDDEN,))
async def list_audit(
    trail: Service,
    caller: CallerDep,
    after: After = None,
    limit: Limit = MAX_ENTRIES,
    actor: Actor = None,
    action: Action = None,
    since: Timestamp | None = None,
    until: Timestamp | None = None,
    tenant: NamedTenant = None,
) -> AuditPage:
    """List who changed what, newest first. A page with fewer than `limit` entries may not be the last."""
    wanted = await requested(caller, actor, action, since, until, tenant)
    return await trail.page(wanted, after=after, limit=limit)


@operations.add(
    "audit.export",
    "GET /v1/audit/export",
    not_over_nats="`audit.list` returns the entries in pages",
    response_class=Response,
    responses={200: {"content": {media_type.partition(";")[0]: {} for media_type in MEDIA_TYPES.values()}}},
)
async def export_audit(
    trail: Service, wanted: Annotated[AuditFilter, Depends(requested)], format: ExportFormat = "jsonl"
) -> StreamedResponse:
    """Download all entries, oldest first, as JSON lines or as CSV."""
    headers = {
        "content-type": MEDIA_TYPES[format],
        "content-disposition": f'attachment; filename="audit.{format}"',
    }
    return StreamedResponse(await trail.export(wanted, format), headers=headers)


async def build(base: Foundation) -> None:
    trail = Trail(base.bus, base.clock)
    base.dispatcher.trail = trail
    base.services.add(trail)


FEATURE = Feature(operations, build)
