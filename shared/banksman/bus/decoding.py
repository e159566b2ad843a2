"""Decode messages of work queues into models."""

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
    """Decode the body of a message.

    Raises:
        Poison: The body is invalid.
        NewerVersion: The body has a version that this process does not know.
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
    """Check that a message has the subject that its body implies: permissions only restrict subjects.

    Raises:
        Poison: The subject differs.
    """
    if message.subject != expected:
        raise Poison(message.subject, f"the body belongs to subject {expected}")
