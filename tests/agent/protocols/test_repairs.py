"""Calls that are slightly wrong and have one reading are repaired, and each repair is reported."""

from __future__ import annotations

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from banksman.agent.protocols import protocol_for
from banksman.agent.protocols.base import ModelReply, RawCall, RequestedCall, RequestedCalls
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject

SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "command": {"type": "string"},
        "lines": {"type": "integer"},
        "share": {"type": "number"},
        "deep": {"type": "boolean"},
        "either": {"type": ["string", "integer"]},
        "names": {"type": "array", "items": {"type": "string"}},
        "sizes": {"type": "array", "items": {"type": "integer"}},
        "options": {"type": "object", "properties": {"depth": {"type": "integer"}}},
    },
}
BASH = ToolDefinition(name="bash", description="Runs a command.", input_schema=SCHEMA)
OTHER = ToolDefinition(name="Bash2", description="Runs a command.", input_schema=SCHEMA)
LS = {"command": "ls"}


def read(name: str, arguments: str | JsonObject, *tools: ToolDefinition) -> tuple[RequestedCall, list[str]]:
    """Return the call of a reply, and the texts of its notices."""
    reply = ModelReply(text=None, calls=(RawCall("a", name, arguments),), finish_reason="tool_calls")
    with capture_logs():
        reading = protocol_for("native").read(reply, tools=tools or (BASH, OTHER))
    assert isinstance(reading, RequestedCalls)
    assert {notice.kind for notice in reading.notices} <= {"repaired"}
    return reading.calls[0], [notice.text for notice in reading.notices]


@pytest.mark.parametrize(
    ("written", "arguments", "repair"),
    [
        ('{"command": "a\nb\tc"}', {"command": "a\nb\tc"}, "a control character in a string was accepted"),
        (json.dumps(json.dumps(LS)), LS, "an object inside a string was read"),
        (json.dumps(LS) * 2, LS, "a repeated object was removed"),
        (f"{json.dumps(LS)}\n{json.dumps(LS)}", LS, "a repeated object was removed"),
        (f"```json\n{json.dumps(LS)}\n```", LS, "a code fence was removed"),
        (f"```\n{json.dumps(LS)}```", LS, "a code fence was removed"),
        ("{}" + json.dumps(LS), LS, "an empty object was removed"),
        (json.dumps(LS) + "}", LS, "closing brackets after the object were removed"),
        (json.dumps(LS) + "\n]}", LS, "closing brackets after the object were removed"),
        (json.dumps(LS) + "<|call|>", LS, "tokens of the model's format were removed"),
        (json.dumps(LS) + "</tool_call>\n<|im_end|>", LS, "tokens of the model's format were removed"),
        (r"""{"command": "echo \'a\'"}""", {"command": "echo 'a'"}, "a quote with a backslash was read"),
        ('{"lines": "30"}', {"lines": 30}, "the text of lines was read as the type that the schema states"),
        ('{"share": "1.5"}', {"share": 1.5}, "the text of share was read"),
        ('{"deep": "True"}', {"deep": True}, "the text of deep was read"),
        ('{"sizes": ["1", 2]}', {"sizes": [1, 2]}, "the text of sizes was read"),
        ('{"names": "[\\"a\\"]"}', {"names": ["a"]}, "the text of names was read"),
        (
            '{"options": "{\\"depth\\": \\"3\\"}"}',
            {"options": {"depth": 3}},
            "the text of options, depth was",
        ),
    ],
)
def test_arguments_with_one_reading_are_repaired(
    written: str, arguments: dict[str, Any], repair: str
) -> None:
    call, notices = read("bash", written)

    assert (call.arguments, call.arguments_error) == (arguments, None)
    [notice] = notices
    assert notice.startswith(f"The call of bash was repaired: {repair}")


@pytest.mark.parametrize(
    "arguments",
    [
        {"command": "30"},
        {"either": "30"},
        {"lines": "many"},
        {"lines": " 30 units"},
        {"lines": "true"},
        {"lines": "1e400"},
        {"deep": "yes"},
        {"deep": "1"},
        {"options": "[1]"},
        {"names": "a, b"},
        {"unknown": "30"},
    ],
)
def test_a_value_that_is_a_valid_text_or_has_no_sure_reading_stays(arguments: dict[str, Any]) -> None:
    assert read("bash", json.dumps(arguments)) == (RequestedCall("bash", arguments, None, "a"), [])


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("functions.bash", "bash"),
        ("Bash", "bash"),
        ("BASH2", "Bash2"),
        ("tools:Bash", "bash"),
        ("default_api.bash", "bash"),
        ("functions.bash:0", "bash"),
        ("bash<|channel|>commentary", "bash"),
        ("bash<|channel|>json", "bash"),
        (" bash ", "bash"),
    ],
)
def test_the_name_of_an_offered_tool_is_corrected(written: str, name: str) -> None:
    call, notices = read(written, "{}")

    assert call.name == name
    assert notices == [f"The call of {name} was repaired: its name was {written!r}."]


@pytest.mark.parametrize("name", ["bas", "bash()", "functions.", "BASH"])
def test_a_name_without_one_meaning_stays(name: str) -> None:
    upper = BASH.model_copy(update={"name": "Bash"})

    assert read(name, "{}", BASH, upper)[0].name == name


def test_a_name_is_corrected_and_its_broken_arguments_reported() -> None:
    call, notices = read("functions.bash", "{")

    assert (call.name, call.arguments, len(notices)) == ("bash", None, 1)


def test_calls_as_text_have_names_and_types_repaired_too() -> None:
    text = '{"tool": "Bash", "parameters": {"lines": "30"}, "terminate": false}'

    reading = protocol_for("json_text").read(ModelReply(text=text), tools=(BASH,))

    assert isinstance(reading, RequestedCalls)
    assert (reading.calls[0].name, reading.calls[0].arguments) == ("bash", {"lines": 30})
    [notice] = reading.notices
    assert notice.text == (
        "The call of bash was repaired: its name was 'Bash'; the text of lines was read as the type that the "
        "schema states."
    )
