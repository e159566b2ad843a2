"""The program that applies schemas of tool servers, with limited memory and processor time per request.

A schema may be cheap to parse and still need hours for a value. Each request is a `CheckRequest` as JSON,
each reply a `CheckReply`.
"""

from __future__ import annotations

import json
from typing import Any, NotRequired, TypedDict

from banksman.runs.schema_checks.rules import Path, UnusableSchema, schema_fault, value_fault
from banksman.runtime.limited_processes import serve

MAX_PATH_CHARS = 1_000
"""Maximum characters of all parts of a path together. A model chooses the names in its arguments."""


class CheckRequest(TypedDict):
    schema: str
    """The schema as JSON."""
    value: NotRequired[Any]
    """The value that must fit; omitted to check the schema itself."""


class CheckReply(TypedDict, total=False):
    """The result of one check; empty if there is no fault."""

    path: list[str | int]
    """The path to the fault. It ends with the part that exceeds its maximum, cut."""
    expected: str
    unusable: str
    """Why the schema cannot be applied."""


def serve_request(request: bytes) -> bytes:
    return json.dumps(reply_to(json.loads(request))).encode()


def reply_to(request: CheckRequest) -> CheckReply:
    try:
        if "value" in request:
            fault = value_fault(request["schema"], request["value"])
        else:
            fault = schema_fault(json.loads(request["schema"]))
    except UnusableSchema as error:
        return {"unusable": str(error)}
    return {} if fault is None else {"path": _shortened(fault.path), "expected": fault.expected}


def _shortened(path: Path) -> list[str | int]:
    kept: list[str | int] = []
    room = MAX_PATH_CHARS
    for part in path:
        if len(str(part)) > room:
            return [*kept, f"{str(part)[:room]}…"]
        kept.append(part)
        room -= len(str(part))
    return kept


if __name__ == "__main__":
    serve(serve_request)
