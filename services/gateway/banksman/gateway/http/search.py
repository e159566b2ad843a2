"""Search in the text of conversations."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from banksman.contracts.wire import Stored
from banksman.gateway.conversations.search import Hit
from banksman.gateway.service.dependencies import CallerDep, ServiceDep
from banksman.gateway.service.routing import router

routes = router("conversations")


class HitPage(Stored):
    """A page of messages that contain the search text, newest first."""

    items: tuple[Hit, ...]
    next: str | None
    """`cursor` of the next page, also after a page without hits; null once all conversations were read."""


@routes.get("/context/search")
async def search(
    gateway: ServiceDep,
    caller: CallerDep,
    q: Annotated[str, Query(min_length=2, max_length=200)],
    cursor: str | None = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
) -> HitPage:
    """Find messages of the tenant's conversations that contain a text, ignoring case.

    The logs are read from the newest one on, for at most 2 s per page.
    """
    found = await gateway.search.find(caller.tenant, q, cursor, limit)
    return HitPage(items=tuple(found.items), next=found.next)
