"""The conversations that the arguments of a request name, in whatever way the request states them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

from pydantic import BaseModel

from banksman.contracts.errors import NotFound, Unavailable
from banksman.contracts.ids import conversation_of_approval
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.parameters import NOT_CONNECTED

KINDS: Final[Mapping[str, str]] = {
    "conversation_id": "conversation",
    "run_id": "run",
    "approval_id": "approval",
    "request_id": "input request",
}
"""What an argument names that belongs to a conversation, by the argument's name."""


class Visibility(Protocol):
    def hides(self, caller: Caller, conversation_id: str) -> bool:
        """Return whether a caller may not know of a conversation."""
        ...


class Named(NamedTuple):
    kind: str
    id: str
    conversation_id: str


def named_in(arguments: Mapping[str, Any]) -> Iterator[Named]:
    """Yield what the arguments name that belongs to a conversation; bodies are searched with their parts."""
    for name, value in arguments.items():
        if isinstance(value, BaseModel):
            # Not `dict`: a body may have a field `keys`.
            yield from named_in(vars(value))
        elif isinstance(value, str) and name in KINDS:
            yield Named(KINDS[name], value, _conversation(name, value))


def check_visible(visibility: Visibility | None, caller: Caller, arguments: Mapping[str, Any]) -> None:
    """Raise `NotFound` for what the arguments name, if it belongs to a hidden conversation.

    The error is the one for an id that does not exist. Without a `visibility`, none may be seen yet.
    """
    for one in named_in(arguments):
        if visibility is None:
            raise Unavailable(NOT_CONNECTED)
        if visibility.hides(caller, one.conversation_id):
            raise NotFound(one.kind, one.id)


def _conversation(name: str, value: str) -> str:
    match name:
        case "conversation_id":
            return value
        case "run_id":
            return value.rpartition("-")[0]
        case _:
            return conversation_of_approval(value) or ""
