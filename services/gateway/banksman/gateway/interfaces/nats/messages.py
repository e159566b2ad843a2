"""The bodies that only NATS has: the parameters that HTTP has in path and query."""

from __future__ import annotations

from pydantic import Field

from banksman.contracts.wire import Wire
from banksman.gateway.operation.parameters import MAX_POSITION
from banksman.gateway.service.resources import MAX_CALLS, MAX_PENDING

MAX_WAIT_S = 60


class ListConversations(Wire):
    """Request a page of the conversations, newest first."""

    q: str = ""
    """Selects the conversations whose title contains this text, or that have this id."""
    cursor: str | None = None
    """`next` of the previous page."""
    limit: int = Field(default=50, ge=1, le=200)


class ReadRun(Wire):
    """Request a run, once it has ended or after `wait_s`."""

    wait_s: float = Field(default=0, ge=0, le=MAX_WAIT_S)


class ListCalls(Wire):
    """Request a page of the calls of a run."""

    after: int = Field(default=0, ge=0)
    """Calls to skip: `next` of the previous page."""
    limit: int = Field(default=MAX_CALLS, ge=1, le=MAX_CALLS)


class ListPending(Wire):
    """Request a page of the open requests to users, oldest first."""

    after: int = Field(default=0, ge=0, le=MAX_POSITION)
    """`next` of the previous page."""
    limit: int = Field(default=MAX_PENDING, ge=1, le=MAX_PENDING)
