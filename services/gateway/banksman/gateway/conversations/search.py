"""Search in the text of a tenant's conversations, newest first, by reading their logs."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Query

from banksman.bus.connection import Bus
from banksman.bus.messages import StoredMessage
from banksman.bus.names import EVENTS
from banksman.bus.storage.log import stored_commit
from banksman.contracts import subjects
from banksman.contracts.errors import NotFound, Poison
from banksman.contracts.events import Event, MessageCompleted, RunStarted
from banksman.contracts.messages import text_of
from banksman.contracts.wire import Stored, Timestamp
from banksman.gateway.conversations.conversations import Conversations
from banksman.gateway.conversations.listing import PAGE_S, Budget, position, windows
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.declaration import Operations
from banksman.gateway.operation.parameters import CallerDep, provided
from banksman.quotas.rates import TooManyRequests
from banksman.runtime.tracing import trace_id_of

AT_ONCE = 2
"""Concurrent searches of a process, one of each tenant; further ones wait."""
WAITING = 4
"""Searches of a tenant that may wait or run at a time; further ones are refused."""
BEFORE_CHARS, AROUND_CHARS = 60, 200
"""Maximum characters of a snippet before the match, and in total."""


class Hit(Stored):
    """A message that contains the search text."""

    conversation_id: str
    title: str
    run_id: str
    message_id: str
    role: str
    """`user` or `assistant`."""
    ts: Timestamp
    snippet: str
    """Text around the match."""


class HitPage(Stored):
    """A page of messages that contain the search text, newest first."""

    items: tuple[Hit, ...]
    next: str | None
    """`cursor` of the next page, also after a page without hits; null once all conversations were read."""


operations = Operations("conversations")


@dataclass(frozen=True, slots=True)
class Search:
    """Searches logs without an index. Each page has a budget of time and bytes, because logs must be read."""

    bus: Bus
    conversations: Conversations
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(AT_ONCE))
    _tenants: dict[str, asyncio.Lock] = field(default_factory=dict[str, asyncio.Lock])
    _waiting: Counter[str] = field(default_factory=Counter[str])

    @operations.add("conversation.search", "GET /context/search")
    async def search(
        self: Service,
        caller: CallerDep,
        q: Annotated[str, Query(min_length=2, max_length=200)],
        cursor: str | None = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
    ) -> HitPage:
        """Find messages of the tenant's conversations that contain a text, ignoring case.

        The logs are read from the newest one on, at most 64 MiB in 1 s per page.
        """
        before, tenant = position(cursor, "search"), caller.tenant
        if self._waiting[tenant] >= WAITING:
            raise TooManyRequests(PAGE_S)
        self._waiting[tenant] += 1
        try:
            async with self._tenants.setdefault(tenant, asyncio.Lock()), self._turns:
                return await self._page(caller, q.casefold(), before, limit)
        finally:
            self._waiting[tenant] -= 1
            if not self._waiting[tenant]:
                del self._waiting[tenant], self._tenants[tenant]

    async def _page(self, caller: Caller, wanted: str, before: int | None, limit: int) -> HitPage:
        hits: list[Hit] = []
        budget = Budget()
        logs = subjects.conversation(caller.tenant, subjects.ANY)
        async for window in windows(self.bus, EVENTS, logs, before):
            for message in window.messages:
                # All hits of a commit are in one page, so a page may have some more than `limit`.
                if len(hits) >= limit or budget.spent:
                    return HitPage(items=tuple(hits), next=str(message.stream_seq + 1))
                await budget.count(message)
                hits += await self._hits(caller, message, wanted)
            if budget.spent and window.after:
                return HitPage(items=tuple(hits), next=str(window.after + 1))
        return HitPage(items=tuple(hits), next=None)

    async def _hits(self, caller: Caller, message: StoredMessage, wanted: str) -> list[Hit]:
        conversation_id = message.subject.rpartition(".")[2]
        if self.conversations.limited.hides(caller, conversation_id):
            return []
        escaped = json.dumps(wanted, ensure_ascii=False)[1:-1]
        if escaped not in message.data.decode(errors="replace").casefold():
            return []  # Most commits do not contain the text and need not be decoded.
        try:
            events = stored_commit(message).commit.events
        except Poison:
            return []
        found = [one for event in events for one in _matches(event, wanted)]
        if not found:
            return []
        try:
            title = (await self.conversations.get(caller.tenant, conversation_id)).title
        except NotFound:
            return []  # The conversation was just deleted, or belongs to a run of a workflow.
        return [
            Hit(
                conversation_id=conversation_id,
                title=title,
                run_id=event.run_id or "",
                message_id=message_id,
                role=role,
                ts=event.ts,
                snippet=snippet,
            )
            for event, message_id, role, snippet in reversed(found)
        ]


Service = Annotated[Search, provided(Search)]


def _matches(event: Event, wanted: str) -> Iterator[tuple[Event, str, str, str]]:
    match event.data:
        case RunStarted(message_id=message_id, message=content, settings=settings):
            role, text = "user", text_of(content)
            if trace_id_of(settings.traceparent) == wanted:
                yield event, message_id, role, _snippet(text, 0)
                return
        case MessageCompleted(message_id=message_id, role=role, content=content) if content is not None:
            text = text_of(content)
        case _:
            return
    at = text.casefold().find(wanted)
    if at >= 0:
        yield event, message_id, role, _snippet(text, at)


def _snippet(text: str, at: int) -> str:
    start = max(0, at - BEFORE_CHARS)
    cut = " ".join(text[start : start + AROUND_CHARS].split())
    return f"{'…' if start else ''}{cut}{'…' if start + AROUND_CHARS < len(text) else ''}"
