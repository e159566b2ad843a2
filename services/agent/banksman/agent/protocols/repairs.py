"""Repairs of calls that models write slightly wrong. Each has one possible reading and is reported.

Arguments that still break a rule stay as they are, and the model receives the rule as the result of its call.
"""

# ruff: noqa: RUF001 - the special tokens of DeepSeek contain such characters

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, cast

from banksman.agent.protocols.base import RequestedCall
from banksman.contracts.errors import BadInput
from banksman.contracts.events import ModelNotice
from banksman.contracts.json_text import MAX_VALUES, has_more_values
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject, JsonValue, strict_json

_PREFIX = re.compile(r"(?:functions?|tools?|default_api)[.:]")
# gpt-oss leaves tokens of its format in names, Kimi the number of the call.
_SUFFIX = re.compile(r"<\|.*|:\d+$", re.DOTALL)
_TOKENS = re.compile(r"(?:\s*(?:<\|[\w/]{1,40}\|>|<｜[^｜<>]{1,40}｜>|</(?:tool_call|function|s)>))+\s*\Z")
_QUOTE = re.compile(r"(?<!\\)((?:\\\\)*)\\'")
_FENCE = re.compile(r"```[\w-]*\s*")
_TYPES: dict[str, type | tuple[type, ...]] = {
    "integer": (int, float),
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "array": list,
}


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object for a JSON decoder; raise `ValueError` for a duplicate key."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("duplicate key")
    return fields


LENIENT = json.JSONDecoder(strict=False, object_pairs_hook=unique_keys)
"""Accepts line ends and other control characters in strings."""


def repaired(
    call: RequestedCall, tools: Mapping[str, ToolDefinition], repair: str | None = None
) -> tuple[RequestedCall, tuple[ModelNotice, ...]]:
    """Return a call with the name of a tool and values of its types, and a notice if anything was changed.

    `repair` is what was changed before, in the text of the arguments.
    """
    name, changed = _known_name(call.name, tools), list[str]()
    arguments: JsonValue = call.arguments
    if arguments and name in tools:
        arguments = _typed(arguments, tools[name].input_schema, "", changed)
    repairs = [repair] if repair else []
    if name != call.name:
        repairs.append(f"its name was {call.name[:64]!r}")
    if changed:
        names = ", ".join(one[:64] for one in changed[:5])
        repairs.append(f"the text of {names} was read as the type that the schema states")
    if not repairs:
        return call, ()
    text = f"The call of {name[:64]} was repaired: {'; '.join(repairs)}."
    changes = {"name": name, "arguments": cast("JsonObject | None", arguments)}
    return replace(call, **changes), (ModelNotice(kind="repaired", text=text),)


def _known_name(name: str, tools: Collection[str]) -> str:
    """Return the tool that a name means: without a prefix such as `functions.`, in another case."""
    if name in tools:
        return name
    bare = _SUFFIX.sub("", _PREFIX.sub("", name.strip(), count=1))
    meant = [bare] if bare in tools else [tool for tool in tools if tool.casefold() == bare.casefold()]
    return meant[0] if len(meant) == 1 else name


def read_arguments(text: str) -> tuple[JsonObject, str | None]:
    """Return arguments and what was repaired in their text; None for text that is one JSON object.

    Raises:
        BadInput: The text has no single reading as an object.
    """
    try:
        value = strict_json(text, what="arguments")
        if isinstance(value, dict):
            return value, None
        raise BadInput("arguments", text[:120], "one JSON object")
    except BadInput as error:
        value, repair = _lenient(text)
        try:
            # A repair must not accept what arguments in good form may not contain.
            checked = None if value is None else strict_json(json.dumps(value), what="arguments")
        except BadInput:
            raise error from None
        if checked is None:
            raise
    return cast("JsonObject", checked), repair


def _lenient(text: str) -> tuple[JsonObject | None, str]:
    repair = "a control character in a string was accepted"
    bare = text.strip()
    if (fence := _FENCE.match(bare)) and bare.endswith("```") and len(bare) > fence.end():
        bare, repair = bare[fence.end() : -3].strip(), "a code fence was removed"
    if (tokens := _TOKENS.search(bare)) and bare[: tokens.start()].endswith("}"):
        bare, repair = bare[: tokens.start()], "tokens of the model's format were removed"
    if "\\'" in bare:
        bare, repair = _QUOTE.sub(r"\1'", bare), "a quote with a backslash was read as a quote"
    if has_more_values(bare.encode("utf-8", "replace"), MAX_VALUES):
        return None, repair
    try:
        value, end = LENIENT.raw_decode(bare)
        if isinstance(value, str) and end == len(bare):
            bare, repair = value.strip(), "an object inside a string was read"
            value, end = LENIENT.raw_decode(bare)
        while (rest := bare[end:].lstrip()) and isinstance(value, dict):
            if not rest.strip("}] \n"):
                return cast("JsonObject", value), "closing brackets after the object were removed"
            # Bedrock behind some proxies begins each call with an empty object.
            bare, repair = rest, "a repeated object was removed" if value else "an empty object was removed"
            again, end = LENIENT.raw_decode(bare)
            if value and again != value:
                return None, repair
            value = again
    except (ValueError, RecursionError):
        return None, repair
    return (cast("JsonObject", value) if isinstance(value, dict) else None), repair


def _typed(value: JsonValue, schema: JsonValue, name: str, changed: list[str]) -> JsonValue:
    if not isinstance(schema, dict):
        return value
    if isinstance(value, str) and (meant := _meant(value, schema.get("type"))) is not None:
        changed.append(name)
        value = meant
    if isinstance(value, dict) and isinstance(properties := schema.get("properties"), dict):
        return {key: _typed(one, properties.get(key), key, changed) for key, one in value.items()}
    if isinstance(value, list):
        return [_typed(one, schema.get("items"), name, changed) for one in value]
    return value


def _meant(text: str, type_name: JsonValue) -> JsonValue:
    """Return the value that a text contains; None if it has another type, or the schema allows text."""
    expected = _TYPES.get(type_name) if isinstance(type_name, str) else None
    if expected is None:
        return None
    try:
        value = strict_json(text.casefold() if type_name == "boolean" else text, what="arguments")
    except BadInput:
        return None
    fits = isinstance(value, expected) and (type_name == "boolean" or not isinstance(value, bool))
    return value if fits else None
