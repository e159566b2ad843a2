"""The program that parses JSON which would delay other clients, with limited memory and processor time."""

from __future__ import annotations

import json
from typing import Any, cast

import jiter

from banksman.contracts.errors import BadInput
from banksman.contracts.json_text import MAX_VALUES, check_values, parsed
from banksman.runtime.limited_processes import serve

CHECK, CHECK_LARGE, FIELDS = b"c", b"l", b"f"
"""The first byte of a request: check the JSON that follows, which is small or large; return fields of a body
that is forwarded."""
LARGE_VALUES = 200_000
"""Maximum number of values in the body of an operation that declares a large one: about 50 ms of parsing."""
FORWARDED_VALUES = 500_000
"""Maximum number of values in a forwarded body."""
NAMES = ("model", "prompt_id")
MAX_NAME_CHARS = 1_000


def reply_to(request: bytes) -> bytes:
    """Return the fields as JSON; in place of them, a text without an object says what was expected."""
    body = request[1:]
    try:
        if request[:1] == FIELDS:
            return json.dumps(forwarded_fields(body)).encode()
        check_values(body, LARGE_VALUES if request[:1] == CHECK_LARGE else MAX_VALUES)
        parsed(body)
    except BadInput as error:
        return error.expected.encode()
    return b"{}"


def forwarded_fields(body: bytes) -> dict[str, Any]:
    """Return the fields of a forwarded body that decide where it goes; none for a body that is no object.

    The upstream applies its own rules to duplicate keys and constants.
    """
    check_values(body, FORWARDED_VALUES)
    try:
        value: object = jiter.from_json(body, cache_mode="keys")
    except ValueError as error:
        parsed(body)
        raise BadInput("body", None, "valid JSON") from error
    if not isinstance(value, dict):
        return {}
    given = cast(dict[str, object], value)
    named = {name: _name(given[name]) for name in NAMES if name in given}
    return {**named, "stream": given.get("stream") is True}


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and len(value) <= MAX_NAME_CHARS else None


if __name__ == "__main__":
    serve(reply_to)
