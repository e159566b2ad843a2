"""Generate, check and split ids."""

from __future__ import annotations

import hashlib
import re
import secrets
import time

from banksman.contracts.errors import BadInput

TOKEN_PATTERN = r"^[A-Za-z0-9_-]{1,64}$"
TOKEN_RULE = "1 to 64 letters, digits, '-' or '_'"
_TOKEN = re.compile(TOKEN_PATTERN)
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS = tuple(first + second for first in _ALPHABET for second in _ALPHABET)
_PART = "_"
"""Precedes the name of a part in a conversation's id."""
_RANDOM_CHARS = 12
"""Length of the random part at the end of an id."""


def check_token(value: str, field: str) -> str:
    """Return `value`; raise `BadInput` unless it is a valid token of a subject."""
    if not is_token(value):
        raise BadInput(field, value[:80], TOKEN_RULE)
    return value


def is_token(value: str) -> bool:
    """Return True if `value` is a valid token of a subject."""
    return _TOKEN.fullmatch(value) is not None


def new_id(prefix: str) -> str:
    """Return a new id that sorts by creation time: prefix, 9 characters of milliseconds, 12 random ones."""
    return f"{prefix}{_base32(time.time_ns() // 1_000_000, 9)}{_base32(secrets.randbits(60), _RANDOM_CHARS)}"


def run_id_for(conversation_id: str) -> str:
    """Return a new run id. It begins with the conversation's id, so a run id identifies its log."""
    return f"{conversation_id}-{_base32(secrets.randbits(60), _RANDOM_CHARS)}"


def conversation_of(run_id: str) -> str:
    """Return the conversation id that a run id begins with; raise `BadInput` for any other id."""
    conversation_id, dash, rest = check_token(run_id, "run_id").rpartition("-")
    if not dash or not conversation_id or len(rest) != _RANDOM_CHARS:
        raise BadInput("run_id", run_id, f"a conversation's id, '-' and {_RANDOM_CHARS} characters")
    return conversation_id


def approval_id_for(run_id: str, cause: str | None = None) -> str:
    """Return an approval id: a new one, or that of a cause, which is the same each time.

    It begins with the run's id, so an approval id identifies its log.
    """
    number = secrets.randbits(60) if cause is None else int(digest(cause.encode())[:15], 16)
    return f"{run_id}-{_base32(number, _RANDOM_CHARS)}"


def conversation_of_approval(approval_id: str) -> str | None:
    """Return the conversation id that an approval id begins with; None if the id is malformed."""
    run_id = approval_id.rpartition("-")[0]
    return run_id.rpartition("-")[0] or None


def part_of(conversation_id: str, name: str | None = None) -> str:
    """Return the id of a conversation that belongs to another, and is seen by the same people.

    `name` has 12 characters, the same for the same part; None for a new part.
    """
    return f"{conversation_id}{_PART}{name or _base32(secrets.randbits(60), _RANDOM_CHARS)}"


def whole_of(conversation_id: str) -> str:
    """Return the conversation to which one belongs by its id; the same id for one of its own."""
    return conversation_id.partition(_PART)[0]


def attempt_id(tool_call_id: str, number: int) -> str:
    """Return the key of one attempt of a call, under which its start and its result are stored."""
    return f"{tool_call_id}-{number}"


def digest(data: bytes) -> str:
    """Return the SHA-256 of `data` as 64 hexadecimal characters."""
    return hashlib.sha256(data).hexdigest()


def _base32(number: int, width: int) -> str:
    # Two characters at a time: each run has dozens of ids.
    pairs = [_PAIRS[(number >> shift) & 1023] for shift in range(5 * (width - width % 2) - 10, -1, -10)]
    first = _ALPHABET[(number >> (5 * (width - 1))) & 31] if width % 2 else ""
    return first + "".join(pairs)
