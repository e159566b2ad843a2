"""Search in the text of conversations."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from banksman.contracts.wire import Stored
from banksman.gateway.conversations.search import Hit, Search
from banksman.gateway.operation.declaration import Operations
from banksman.gateway.operation.parameters import CallerDep, provided

operations = Operations("conversations")


class HitPage(Stored):
    """A page of messages that contain the search text, newest first."""

    items: tuple[Hit, ...]
    next: str | None
    """`cursor` of the next page, also after a page without hits; null once all conversations were read."""


@operations.add("conversation.search", "GET /context/search")
async def search(
    searching: Annotated[Search, provided(Search)],
    caller: CallerDep,
    q: Annotated[str, Query(min_length=2, max_length=200)],
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> HitPage:
    """Find messages of the tenant's conversations that contain a text, ignoring case.

    The logs are read from the newest one on, for at most 2 s per page.
    """
    found = await searching.find(caller, q, cursor, limit)
    return HitPage(items=tuple(found.items), next=found.next)
