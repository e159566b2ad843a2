"""Prompts, whose texts are in `texts`, and their variables: `{{name}}`, `{{a.b}}`, `{{name|default}}` (R78).

Only this module and the adapters of the tool protocols use the keys of calls that models write as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from banksman.contracts.errors import BadInput
from banksman.contracts.messages import ToolProtocol
from banksman.contracts.wire import JsonObject, JsonValue

_PLACEHOLDER = re.compile(r"\{\{([^{}]*+)\}\}")
_PATH = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*+(?:\.[A-Za-z0-9_-]++)*+")


def run_variables(*, service: str, user_message: str, variables: Mapping[str, JsonValue]) -> JsonObject:
    """Return `variables` that are not null, completed with the names that every run has."""
    given = {name: value for name, value in variables.items() if value is not None}
    return {"rag_context": "", "intent": "", "service": service, **given, "user_message": user_message}


def render(template: str, variables: Mapping[str, JsonValue]) -> str:
    """Replace the variables of a template by their values.

    Strings are inserted unchanged, other values as JSON. `{{name|text}}` inserts `text` without surrounding
    white space if the variable is missing or null. Braces in values are not replaced, so a message cannot
    read a variable. White space around a name is ignored.

    Raises:
        BadInput: A variable is missing, or braces contain no name.
    """
    parts = parts_of(template)
    return "".join(part if isinstance(part, str) else _value(part, variables) for part in parts)


def variables_of(template: str) -> tuple[str, ...]:
    """Return the distinct names in their order; raise `BadInput` if braces contain no name."""
    return tuple(dict.fromkeys(part.path for part in parts_of(template) if isinstance(part, Placeholder)))


@dataclass(frozen=True, slots=True)
class Placeholder:
    path: str
    default: str | None
    """The text in place of a missing value; None requires a value."""


def parts_of(template: str) -> Iterator[str | Placeholder]:
    """Yield the texts and placeholders in their order; raise `BadInput` if braces contain no name."""
    for index, part in enumerate(_PLACEHOLDER.split(template)):
        # The pattern has one group, so every second part is the inside of braces.
        if index % 2:
            yield _placeholder(part)
        elif part:
            yield part


def look_up(path: str, variables: Mapping[str, JsonValue]) -> JsonValue:
    """Return the value at a dotted path; None if it is missing. Numbers are positions in lists."""
    node: JsonValue = cast(JsonValue, variables)
    for step in path.split("."):
        if isinstance(node, list) and step.isdecimal() and int(step) < len(node):
            node = node[int(step)]
        elif isinstance(node, Mapping):
            node = node.get(step)
        else:
            return None
    return node


def _value(placeholder: Placeholder, variables: Mapping[str, JsonValue]) -> str:
    value = look_up(placeholder.path, variables)
    if value is not None:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if placeholder.default is None:
        raise BadInput(f"variables.{placeholder.path}", None, "a value, because the system prompt uses it")
    return placeholder.default


def _placeholder(written: str) -> Placeholder:
    name, bar, default = written.partition("|")
    path = name.strip()
    if not _PATH.fullmatch(path):
        raise BadInput("system_prompt", "{{" + written + "}}", "a variable's name between the braces")
    return Placeholder(path, default.strip() if bar else None)


TOOL_KEY = "tool"
PARAMETERS_KEY = "parameters"
TERMINATE_KEY = "terminate"

CALL_SKELETON = (
    f'{{"{TOOL_KEY}": "tool_name", "{PARAMETERS_KEY}": {{"name": "value"}}, "{TERMINATE_KEY}": false}}'
)

TERMINATE_SCHEMA: JsonObject = {
    "type": "boolean",
    "description": "true: your last action; the result itself goes to the user as the answer. Default false.",
}
"""The optional parameter of native calls in addition to the parameters of their tool."""


NUDGE = "Your last reply was empty. Write the answer for the user now, or call a tool if one is offered."
"""The message that requests an empty reply again; it does not stay in the history."""


USER_INSTRUCTIONS = "The user wants this of every reply, unless a message says otherwise:"
"""Stands before the own instructions of a user, after the system prompt."""


def correction(rule: str, attempt: int) -> str:
    """Return the correction to send to a model; `attempt` is 1 for the first malformed reply in a row."""
    problem = f"Your last reply looks like a tool call, but it cannot be read: {rule}. Nothing was executed."
    match attempt:
        case 1:
            return f"{problem}\nSend the corrected call as one JSON object, or answer in plain text."
        case 2:
            return (
                f"{problem}\nA call is exactly one object of this form, with all three fields and nothing "
                f"else in the reply:\n{CALL_SKELETON}\n"
                f'"{PARAMETERS_KEY}" is an object, not a string; "{TERMINATE_KEY}" is true or false without '
                "quotes."
            )
        case _:
            return (
                f"{problem}\nThis is the last attempt. Reply with nothing but the JSON object, on one line, "
                f"without a code fence:\n{CALL_SKELETON}\n"
                "If you do not need a tool, reply in plain words without any braces."
            )


def _text(name: str) -> str:
    return (Path(__file__).parent / "texts" / f"{name}.md").read_text("utf-8").rstrip("\n")


DEFAULT_PROMPT = _text("default")
"""The prompt of the `default` assistant and of every assistant without a prompt."""
MERMAID_INSTRUCTIONS = _text("diagrams")
HOW_TO_CALL: Mapping[ToolProtocol, str] = {
    "native": _text("native_calls"),
    "json_text": _text("json_text_calls"),
}
"""How models call tools, by protocol. The text for `json_text` contains `CALL_SKELETON`."""
