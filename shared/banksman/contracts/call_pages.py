"""The calls of a run, including those that its outcome omits."""

from __future__ import annotations

from banksman.contracts.events import TrackedCall
from banksman.contracts.wire import Stored, Token


class ListedCall(TrackedCall):
    """A call of a run. Its complete output is at `…/tool-calls/{tool_call_id}/output`."""

    tool_call_id: Token


class CallPage(Stored):
    """A page of the calls of a run that have a result, in the order of their results."""

    items: tuple[ListedCall, ...]
    next: int | None
    """`after` of the next page; null at the end."""
    total: int
    """Number of calls with a result."""
