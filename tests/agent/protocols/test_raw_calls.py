"""Calls in the text of a reply, in the formats of the model families, with the native protocol."""
# ruff: noqa: RUF001 - the special tokens of DeepSeek contain such characters

from __future__ import annotations

import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from banksman.agent.protocols import protocol_for
from banksman.agent.protocols.base import Final, ModelReply, RawCall, Reading, RequestedCalls
from banksman.contracts.events import FinishReason
from banksman.contracts.tools import ToolDefinition

PROTOCOL = protocol_for("native")
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}, "lines": {"type": "integer"}}}
TOOLS = (
    ToolDefinition(name="bash", description="Runs a command.", input_schema=SCHEMA),
    ToolDefinition(name="now", description="Returns the time."),
)
LS = {"command": "ls"}
ONE = '{"name": "bash", "arguments": {"command": "ls"}}'

FORMS: dict[str, tuple[str, list[tuple[str, dict[str, Any]]]]] = {
    "Hermes": (f"<tool_call>\n{ONE}\n</tool_call>", [("bash", LS)]),
    "Hermes, two": (f"<tool_call>{ONE}</tool_call>\n<tool_call>{ONE}</tool_call>", [("bash", LS)] * 2),
    "Hermes, not closed": (f"<tool_call>\n{ONE}", [("bash", LS)]),
    "Hermes, arguments as text": (
        '<tool_call>{"name": "bash", "arguments": "{\\"command\\": \\"ls\\"}"}</tool_call>',
        [("bash", LS)],
    ),
    "Hermes, OpenAI's object": (
        f'<tool_call>{{"type": "function", "function": {ONE}}}</tool_call>',
        [("bash", LS)],
    ),
    "Hermes, a line end in a string": (
        '<tool_call>{"name": "bash", "arguments": {"command": "l\ns"}}</tool_call>',
        [("bash", {"command": "l\ns"})],
    ),
    "a list": (f"<tool_calls>[{ONE}, {ONE}]</tool_calls>", [("bash", LS)] * 2),
    "Qwen coder": (
        "<tool_call>\n<function=bash>\n<parameter=command>\nls\npwd\n</parameter>\n</function>\n</tool_call>",
        [("bash", {"command": "ls\npwd"})],
    ),
    "Qwen coder without a wrapper": (
        "<function=bash>\n<parameter=command>\nls\n</parameter>\n</function>",
        [("bash", LS)],
    ),
    "GLM": (
        "<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>ls</arg_value>\n</tool_call>",
        [("bash", LS)],
    ),
    "GLM without parameters": ("<tool_call>now</tool_call>", [("now", {})]),
    "Llama": ('<function=bash>{"command": "ls"}</function>', [("bash", LS)]),
    "Llama with its tag": (
        '<|python_tag|>{"type": "function", "name": "bash", "parameters": {"command": "ls"}}<|eom_id|>',
        [("bash", LS)],
    ),
    "Llama with its tag, two": (f"<|python_tag|>{ONE}; {ONE}", [("bash", LS)] * 2),
    "Llama without a tag": ('{"name": "bash", "parameters": {"command": "ls"}}', [("bash", LS)]),
    "Mistral": (f"[TOOL_CALLS] [{ONE}, {ONE}]", [("bash", LS)] * 2),
    "Mistral, newer": (
        '[TOOL_CALLS]bash[ARGS]{"command": "ls"}[TOOL_CALLS]now[CALL_ID]abc123xyz[ARGS]{}</s>',
        [("bash", LS), ("now", {})],
    ),
    "DeepSeek": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>bash\n```json\n"
        '{"command": "ls"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        [("bash", LS)],
    ),
    "DeepSeek, newer": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>bash<｜tool▁sep｜>{"command": "ls"}<｜tool▁call▁end｜>'
        "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        [("bash", LS), ("now", {})],
    ),
    "DeepSeek, newest": (
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="bash">\n<｜DSML｜parameter name="command" '
        'string="true">ls</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        [("bash", LS)],
    ),
    "Kimi": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.bash:0<|tool_call_argument_begin|>"
        '{"command": "ls"}<|tool_call_end|><|tool_calls_section_end|>',
        [("bash", LS)],
    ),
    "MiniMax": (
        '<minimax:tool_call>\n<invoke name="bash">\n<parameter name="command">ls</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
        [("bash", LS)],
    ),
    "Llama, Python": ('[bash(command="ls"), now()]', [("bash", LS), ("now", {})]),
    "xLAM": (f"[{ONE}]", [("bash", LS)]),
    "Groq's Llama": ('<function=bash{"command": "ls"}</function>', [("bash", LS)]),
    "Granite": (f"<|tool_call|>[{ONE}]", [("bash", LS)]),
    "LFM2": (
        '<|tool_call_start|>[bash(command="ls", lines=3)]<|tool_call_end|>',
        [("bash", {"command": "ls", "lines": 3})],
    ),
    "Olmo": (
        '<function_calls>\nbash(command="ls")\nnow()\n</function_calls>',
        [("bash", LS), ("now", {})],
    ),
    "InternLM": (
        '<|action_start|><|plugin|>\n{"name": "bash", "parameters": {"command": "ls"}}<|action_end|>',
        [("bash", LS)],
    ),
    "DeepSeek without the outer tokens": (
        '<｜tool▁call▁begin｜>bash<｜tool▁sep｜>{"command": "ls"}<｜tool▁call▁end｜>',
        [("bash", LS)],
    ),
    "Kimi without the outer tokens": (
        '<|tool_call_begin|>functions.bash:0<|tool_call_argument_begin|>{"command": "ls"}<|tool_call_end|>',
        [("bash", LS)],
    ),
    "gpt-oss with the beginning of a message": (
        '<|start|>assistant<|channel|>commentary to=functions.bash json<|message|>{"command": "ls"}<|call|>',
        [("bash", LS)],
    ),
    "gpt-oss, the recipient first": (
        '<|start|>assistant to=functions.bash<|channel|>commentary json<|message|>{"command": "ls"}<|call|>',
        [("bash", LS)],
    ),
    "gpt-oss": (
        '<|channel|>commentary to=functions.bash <|constrain|>json<|message|>{"command": "ls"}<|call|>',
        [("bash", LS)],
    ),
}


WHOLE = ("Llama without a tag", "Llama, Python", "xLAM")
"""The forms that are calls only if nothing else is in the reply."""


def read(text: str, *, reason: FinishReason = "stop", tools: tuple[ToolDefinition, ...] = TOOLS) -> Reading:
    return PROTOCOL.read(ModelReply(text=text, finish_reason=reason), tools=tools)


@pytest.mark.parametrize("form", FORMS)
def test_a_call_in_the_text_is_read_in_every_form(form: str) -> None:
    text, calls = FORMS[form]

    reading = read(text)

    assert isinstance(reading, RequestedCalls)
    assert [(call.name, call.arguments) for call in reading.calls] == calls
    assert (reading.text, [notice.kind for notice in reading.notices]) == (None, ["repaired"])


@pytest.mark.parametrize("form", [name for name in FORMS if name not in WHOLE])
def test_the_text_around_a_call_stays_and_no_piece_of_a_call_is_shown(form: str) -> None:
    text = f"I look.\n\n{FORMS[form][0]}"
    shown = PROTOCOL.delta_filter()

    reading = read(text)
    published = "".join(shown.feed(letter) for letter in text)

    assert isinstance(reading, RequestedCalls)
    assert reading.text == published.strip() == "I look."


QUOTES = ("As asked:\n```\n{}\n```\n", "~~~xml\n{}\n~~~", "````md\n```\n{}\n```\n````", "Write `{}` then.")
EXAMPLES = [
    (form, quote)
    for form, (text, _) in FORMS.items()
    for quote in QUOTES
    # A form with a fence of its own would end the fence around it.
    if "```" not in text or "~" in quote
]


@pytest.mark.parametrize(("form", "quote"), EXAMPLES)
def test_an_example_in_code_stays_text(form: str, quote: str) -> None:
    example = FORMS[form][0]
    text = quote.format(example.replace("\n", " ") if quote.startswith("Write") else example)
    shown = PROTOCOL.delta_filter()

    assert read(text) == Final(text, "stop")
    assert "".join([*(shown.feed(letter) for letter in text), shown.flush()]) == text


@pytest.mark.parametrize(
    "text",
    [
        "The tags <tool_call> and </tool_call> enclose a call.",
        "<tool_call>\nnot a call\n</tool_call>",
        '<tool_call>{"city": "Bern"}</tool_call>',
        '{"name": "Bern", "parameters": {"height": 542}}',
        '{"name": "bash", "arguments": {}, "price": 3}',
        '{"name": "bash"}',
        "[TOOL_CALLS] is a token.",
        "a < b, [x] and <b>",
        "[rm(path='x')]",
        "[bash('ls')]",
        "[bash(command=open('x'))]",
        "[bash(command='ls'), 3]",
        "[bash(**{'command': 'ls'})]",
        '<function_calls>\nbash(command="ls")\nx = 1\n</function_calls>',
        "[bash](https://example.com/bash(1))",
        '[{"name": "bash", "arguments": {}}, {"name": "Bern", "arguments": {}}]',
        "[bash(" + "[" * 300,
    ],
)
def test_text_that_is_no_call_stays_text(text: str) -> None:
    shown = PROTOCOL.delta_filter()

    assert read(text) == Final(text, "stop")
    assert "".join([*(shown.feed(letter) for letter in text), shown.flush()]) == text


@pytest.mark.parametrize("form", FORMS)
def test_without_tools_every_form_is_text(form: str) -> None:
    """R82, R86."""
    text, _ = FORMS[form]

    assert read(text, tools=()) == Final(text, "stop")


def test_calls_in_the_vendors_fields_leave_the_text_alone() -> None:
    reply = ModelReply(
        text=FORMS["Hermes"][0], calls=(RawCall("a", "now", "{}"),), finish_reason="tool_calls"
    )

    reading = PROTOCOL.read(reply, tools=TOOLS)

    assert isinstance(reading, RequestedCalls)
    assert ([call.name for call in reading.calls], reading.text) == (["now"], reply.text)


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_a_broken_call_of_an_offered_tool_gets_an_error(reason: FinishReason) -> None:
    with capture_logs():
        reading = read('<tool_call>{"name": "bash", "arguments": {"command": "l', reason=reason)

    assert isinstance(reading, RequestedCalls)
    [call] = reading.calls
    assert (call.name, call.arguments) == ("bash", None)
    assert "JSON" in (call.arguments_error or "")


def test_a_fence_in_the_arguments_of_a_call_does_not_hide_the_next_call() -> None:
    text = "<function=bash>\n<parameter=command>\n```\nls\n</parameter>\n</function>\n" + FORMS["Hermes"][0]

    reading = read(text)

    assert isinstance(reading, RequestedCalls)
    assert [call.arguments for call in reading.calls] == [{"command": "```\nls"}, LS]


@pytest.mark.parametrize("before", ["", "A call begins with <tool_call>: "])
def test_markers_in_the_arguments_of_a_call_are_part_of_them(before: str) -> None:
    command = "cat > format.md <<'E'\n<tool_call>{...}</tool_call> or <tool_call>now</tool_call>\nE"
    written = json.dumps({"name": "bash", "arguments": {"command": command}})
    text = f"{before}<tool_call>{written}</tool_call>\nThen:\n<tool_call>{ONE}</tool_call>"

    reading = read(text)

    assert isinstance(reading, RequestedCalls)
    assert [call.arguments for call in reading.calls] == [{"command": command}, LS]


@pytest.mark.parametrize("form", ["<parameter=command>{}</parameter></function>", "GLM"])
def test_the_end_of_a_value_in_quotes_is_part_of_the_value(form: str) -> None:
    quoted = "echo '</parameter>' '</arg_value>' > tags"
    text = f"<tool_call>bash\n<arg_key>command</arg_key>\n<arg_value>{quoted}</arg_value>\n</tool_call>"
    if form != "GLM":
        text = "<function=bash>" + form.format(quoted)

    reading = read(text)

    assert isinstance(reading, RequestedCalls)
    assert [call.arguments for call in reading.calls] == [{"command": quoted}]


def test_values_of_a_format_without_types_have_the_types_of_the_schema() -> None:
    lines = "<parameter=lines>\n30\n</parameter>\n"

    reading = read(f"<function=bash>\n{lines}<parameter=terminate>true</parameter></function>")

    assert isinstance(reading, RequestedCalls)
    assert (reading.calls[0].arguments, reading.calls[0].terminate) == ({"lines": 30}, True)


def test_duplicate_keys_are_refused() -> None:
    with capture_logs():
        reading = read(
            '<tool_call>{"name": "bash", "arguments": {"command": "a", "command": "b"}}</tool_call>'
        )

    assert isinstance(reading, RequestedCalls)
    assert reading.calls[0].arguments is None


def test_a_json_answer_is_streamed_while_it_is_written() -> None:
    shown = PROTOCOL.delta_filter()

    assert "".join(shown.feed(letter) for letter in json.dumps({"answer": 42})) == '{"answer": 42}'
