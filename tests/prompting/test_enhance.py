from __future__ import annotations

from typing import Any

import pytest

from banksman.contracts.messages import ToolProtocol
from banksman.contracts.tools import ToolDefinition
from banksman.prompting.enhance import enhance, estimated_tokens
from banksman.prompting.templates import CALL_SKELETON


def tool(name: str, **fields: Any) -> ToolDefinition:
    return ToolDefinition(name=name, **{"description": f"Does {name}.", **fields})


BASH = tool(
    "bash",
    category="workspace",
    description="Runs a\n  command.",
    input_schema={
        "type": "object",
        "properties": {
            "command": {"type": "string", "description": "What to run."},
            "mode": {"enum": ["fast", "safe"]},
            "timeout_s": {"type": "number", "default": 60, "maximum": 300},
            "env": {"type": "array", "items": {"type": "string"}},
            "cwd": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["command"],
    },
)
NOW = tool("now")


@pytest.mark.parametrize("protocol", ["native", "json_text"])
def test_prompt_describes_tools_and_parameters_by_category(protocol: ToolProtocol) -> None:
    """R4, R25, R27."""
    text = enhance("You help.", [BASH, NOW], protocol).text

    assert text.startswith("You help.\n\n## Tools\n\n### general\n\n**now**: Does now.\n- no parameters\n\n")
    assert (
        "### workspace\n\n"
        "**bash**: Runs a command.\n"
        "- `command` (string, required): What to run.\n"
        '- `mode` (one of "fast", "safe", optional)\n'
        "- `timeout_s` (number, optional) [default 60, at most 300]\n"
        "- `env` (array of string, optional)\n"
        "- `cwd` (string or null, optional)\n"
    ) in text
    assert "```mermaid" in text


def test_json_text_prompt_explains_the_format_and_terminate() -> None:
    """R4, R20."""
    text = enhance("", [NOW], "json_text").text

    assert "output ONLY one JSON object" in text
    assert CALL_SKELETON in text
    assert "false: the result comes back to you" in text
    assert "true: this is your last action" in text


def test_native_prompt_explains_terminate_without_the_text_format() -> None:
    """R36."""
    text = enhance("", [NOW], "native").text

    assert '"terminate" to true' in text
    assert CALL_SKELETON not in text


def test_prompt_names_tools_that_end_the_run() -> None:
    """R36."""
    last = NOW.model_copy(update={"name": "finish", "terminate": True})

    text = enhance("", [NOW, last], "json_text").text

    assert text.count("every call is your last action") == 1


def test_without_tools_only_diagrams_are_added() -> None:
    """R57."""
    enhanced = enhance("You help.", [], "json_text")

    assert enhanced.text.startswith("You help.\n\n## Diagrams")
    assert enhance("You help.", [], "json_text", mermaid=False).text == "You help."


def test_small_budget_shortens_descriptions_before_it_drops_tools() -> None:
    """R33."""
    tools = [tool(f"t{number}", description="word " * 200) for number in range(4)]

    enhanced = enhance("You help.", tools, "native", budget_tokens=600)

    assert enhanced.shortened
    assert enhanced.dropped == ()
    assert "word word…" in enhanced.text


def test_tools_with_the_lowest_priority_are_dropped_first_and_named() -> None:
    """R33."""
    tools = [
        tool("first", priority=5),
        tool("odd", priority=-5, category="other"),
        tool("second"),
        tool("third"),
    ]
    whole = enhance("You help.", tools, "native")
    budget = whole.estimated_tokens - 20

    enhanced = enhance("You help.", tools, "native", budget_tokens=budget)

    assert enhanced.dropped == ("odd", "third")
    assert [kept.name for kept in enhanced.tools] == ["first", "second"]
    assert "third" not in enhanced.text
    assert "### other" not in enhanced.text
    assert enhanced.estimated_tokens - estimated_tokens("You help.\n\n") <= budget


def test_budget_without_room_keeps_the_base() -> None:
    enhanced = enhance("You help.", [NOW], "json_text", budget_tokens=0, mermaid=False)

    assert enhanced.text == "You help."
    assert enhanced.dropped == ("now",)


def test_thousand_tools_are_cut_to_the_budget() -> None:
    tools = [tool(f"tool_{number}", priority=number % 100) for number in range(1000)]

    enhanced = enhance("You help.", tools, "json_text", budget_tokens=1_000)

    assert len(enhanced.tools) + len(enhanced.dropped) == 1000
    assert enhanced.estimated_tokens <= 1_010
    assert min(kept.priority for kept in enhanced.tools) >= 90
