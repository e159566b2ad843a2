"""JSON text that others wrote: bounds on its values, nesting and digits, at the speed of the parser.

A walk over parsed values in Python takes hundreds of times longer than parsing them, and a parsed value takes
up to fifty times the bytes of its text.
"""

from __future__ import annotations

import json
import re
from typing import cast

import jiter

from banksman.contracts.errors import BadInput

MAX_DEPTH = 128
"""Maximum number of arrays and objects within each other. The log nests accepted JSON a few levels deeper,
and pydantic's parser, which reads the log, fails at 200."""
MAX_VALUES = 20_000
"""Maximum number of values in accepted JSON, nested ones included: about 5 ms of parsing."""

LONE_SURROGATE = "valid UTF-8 without lone surrogates"
FINITE = "a number is larger than a double can hold, about 1.8e308"

_PARSER_DEPTH = 201
_ABOVE = _PARSER_DEPTH - MAX_DEPTH
_OPENED, _CLOSED = b"[" * _ABOVE, b"]" * _ABOVE
"""With them around a text, the parser's own limit is `MAX_DEPTH`."""
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_POSITION = re.compile(r" at line (\d+) column (\d+)$")
_CONSTANT = re.compile(rb"-?Infinity|NaN")


class CheckedJson(bytes):
    """JSON whose number of values was checked, so that it is not checked again."""

    __slots__ = ()


def most_values(data: bytes) -> int:
    """Return an upper bound of the number of values, which counts also the punctuation in strings."""
    return 1 + len(data) - len(data.translate(None, b",[{"))


def has_more_values(data: bytes, most: int) -> bool:
    """Return whether a text has more than `most` values.

    A text whose strings contain much punctuation takes up to 40 ms per MiB, any other one 1 ms.
    """
    if most_values(data) <= most:
        return False
    most_strings = 2 * most + 1
    bare, strings = _STRING.subn(b"", data, most_strings)
    return strings == most_strings or most_values(bare) > most


def check_values(data: bytes, most: int = MAX_VALUES, *, what: str = "body") -> None:
    """Raise `BadInput` if a text has more than `most` values."""
    if not isinstance(data, CheckedJson) and has_more_values(data, most):
        raise BadInput(what, None, f"JSON with at most {most} values, nested at most {MAX_DEPTH} deep")


def parsed(data: bytes, *, what: str = "body") -> object:
    """Parse JSON; raise `BadInput` for duplicate keys, NaN, overflow, lone surrogates and deep nesting.

    The number of values must be checked before.
    """
    try:
        if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
            _parsed(_OPENED + data + _CLOSED)
        value = _parsed(data)
    except ValueError as error:
        raise BadInput(what, None, _expected(data, str(error))) from error
    if not has_finite_numbers(value):
        raise BadInput(what, None, f"valid JSON; {FINITE}")
    return value


def has_finite_numbers(value: object) -> bool:
    """Return whether all numbers fit a double: a parser turns 1e400 into an infinity, stored as null."""
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False)
    except ValueError:
        return False
    return True


def _parsed(data: bytes, *, constants: bool = False) -> object:
    return cast(
        object, jiter.from_json(data, allow_inf_nan=constants, catch_duplicate_keys=True, cache_mode="keys")
    )


def _expected(data: bytes, fault: str) -> str:
    if fault.startswith("recursion limit"):
        return f"JSON nested at most {MAX_DEPTH} deep"
    if "surrogate" in fault or "end of hex escape" in fault or not _is_utf8(data):
        return LONE_SURROGATE
    return f"valid JSON; {_rule(data, fault)}"


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _rule(data: bytes, fault: str) -> str:
    """Return the rule that a text violates, or the position of a syntax error."""
    rule = _POSITION.sub("", fault)
    if rule.startswith("Detected duplicate key"):
        return f"duplicate key '{rule[24:-1][:200]}'"
    if rule == "number out of range":
        return "a number has more than 4300 digits"
    if constant := _constant(data):
        return f"{constant} is not JSON"
    line, column = map(int, found.groups()) if (found := _POSITION.search(fault)) else (1, 1)
    return f"it is broken at line {line}, column {column + rule.startswith('EOF')}"


def _constant(data: bytes) -> str | None:
    """Return `NaN` or an infinity if that is the only fault of a text."""
    try:
        _parsed(data, constants=True)
    except ValueError:
        return None
    found = _CONSTANT.search(data)
    return found[0].decode() if found else None
