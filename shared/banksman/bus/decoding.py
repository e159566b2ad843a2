"""Bytes of a work queue into a model, or the word for why not."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from banksman.bus.errors import NewerVersion
from banksman.bus.outcomes import WorkMessage
from banksman.contracts.errors import Poison
from banksman.contracts.wire import WIRE_VERSION

T = TypeVar("T")

_VERSION = "v"


def decoded(adapter: TypeAdapter[T], message: WorkMessage) -> T:
    """What a message says.

    Raises:
        Poison: it cannot be read.
        NewerVersion: it is of a version that this process does not know.
    """
    try:
        return adapter.validate_json(message.data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        version: Any = first.get("input")
        if first["loc"][-1:] == (_VERSION,) and isinstance(version, int) and version > WIRE_VERSION:
            raise NewerVersion(message.subject, version) from error
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise Poison(message.subject, f"{where}: {first['msg']}") from error


def check_subject(message: WorkMessage, expected: str) -> None:
    """Refuse a body that is about something else than its subject, which is what permissions judge.

    Raises:
        Poison: it is.
    """
    if message.subject != expected:
        raise Poison(message.subject, f"the message belongs to {expected}")
