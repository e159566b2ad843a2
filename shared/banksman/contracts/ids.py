"""Ids: made, checked, and taken apart."""

from __future__ import annotations

import hashlib
import re
import secrets
import time

from banksman.contracts.errors import BadInput

_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def check_token(value: str, field: str) -> str:
    """Return `value` when it may stand as one token of a subject.

    Raises:
        BadInput: when it is empty, longer than 64, or has another character than letters, digits, `-`, `_`.
    """
    if not is_token(value):
        raise BadInput(field, value[:80], "1 to 64 letters, digits, '-' or '_'")
    return value


def is_token(value: str) -> bool:
    """Whether `value` may stand as one token of a subject."""
    return _TOKEN.fullmatch(value) is not None


def new_id(prefix: str) -> str:
    """An id that sorts by its time of making: prefix, 9 characters of milliseconds, 12 random ones."""
    return f"{prefix}{_base32(time.time_ns() // 1_000_000, 9)}{_base32(secrets.randbits(60), 12)}"


def run_id_for(conversation_id: str) -> str:
    """A new run's id; it begins with its conversation's, so a run's id alone finds its log."""
    return f"{conversation_id}-{_base32(secrets.randbits(60), 12)}"


def conversation_of(run_id: str) -> str:
    """The conversation that a run's id begins with.

    Raises:
        BadInput: when the id has no such part.
    """
    conversation_id, dash, rest = check_token(run_id, "run_id").rpartition("-")
    if not dash or not conversation_id or not rest:
        raise BadInput("run_id", run_id, "a conversation's id, '-' and 12 characters")
    return conversation_id


def attempt_id(tool_call_id: str, number: int) -> str:
    """The key of one attempt of a call: where its start and its result are stored."""
    return f"{tool_call_id}-{number}"


def digest(data: bytes) -> str:
    """A SHA-256 in hex, 64 characters."""
    return hashlib.sha256(data).hexdigest()


def _base32(number: int, width: int) -> str:
    digits = [_ALPHABET[(number >> (5 * place)) & 31] for place in range(width)]
    return "".join(reversed(digits))
