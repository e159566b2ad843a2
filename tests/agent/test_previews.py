from __future__ import annotations

from typing import Any

import pytest

from banksman.contracts.approvals import Preview
from banksman.contracts.tools import ToolCall
from banksman.contracts.visible import visible
from banksman.runs.approval.policy import MAX_PREVIEW_CHARS, preview


def shown(name: str, **arguments: Any) -> Preview:
    return preview(ToolCall(id="c1", name=name, arguments=arguments))


def test_each_workspace_tool_has_its_own_preview_kind() -> None:
    assert shown("bash", command="ls -la") == Preview(kind="command", command="ls -la")
    assert shown("web_fetch", url="https://a.org/") == Preview(kind="url", url="https://a.org/")
    assert shown("other", a=1) == Preview(kind="text", text='{\n  "a": 1\n}')
    assert shown("bash", command=["ls"]).kind == "text"


def test_write_preview_shows_old_and_new_content() -> None:
    call = ToolCall(id="c1", name="write_file", arguments={"path": "a.txt", "content": "new"})

    assert preview(call, old_content="old") == Preview(kind="diff", path="a.txt", old="old", new="new")
    assert preview(call).old is None


@pytest.mark.parametrize(
    ("hidden", "escaped"),
    [
        ("a\u202eb", "a\\u202eb"),
        ("a\u200bb", "a\\u200bb"),
        ("\x1b[31m", "\\u001b[31m"),
        ("a\rb", "a\\u000db"),
        ("\u2066x\u2069", "\\u2066x\\u2069"),
        ("\U000e0041", "\\U000e0041"),
        ("\ufeff", "\\ufeff"),
    ],
)
def test_invisible_and_bidirectional_characters_are_escaped(hidden: str, escaped: str) -> None:
    """P15."""
    assert visible(hidden) == escaped
    assert shown("bash", command=hidden).command == escaped


def test_ordinary_text_is_unchanged() -> None:
    text = "Zeile\tähm\n日本語 — 😀 עברית\n"

    assert visible(text) == text


def test_long_text_is_cut_with_the_number_of_omitted_characters() -> None:
    command = shown("bash", command="x" * (MAX_PREVIEW_CHARS + 1_500)).command or ""

    assert command.endswith("\n[1,500 more characters]")
    assert len(command) < MAX_PREVIEW_CHARS + 50
