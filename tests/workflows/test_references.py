"""References of workflows without code: the values that they insert, and their limits."""

from __future__ import annotations

import pytest

from banksman.contracts.wire import JsonObject, JsonValue
from banksman.sdk.workflows import WorkflowFailed
from banksman.workflows.without_code import MAX_FILLED_CHARS, Values

VALUES = Values({"n": 3, "topic": "{{steps.big}}", "none": None}, {"found": {"matches": [{"path": "a.py"}]}})


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{{parameters.n}}", 3),
        ("{{ parameters.n }} of 4", "3 of 4"),
        ("{{steps.found.matches}}", [{"path": "a.py"}]),
        ("in {{steps.found.matches.0.path}}", "in a.py"),
        ("{{parameters.tone|friendly}}", "friendly"),
        ("{{parameters.none|empty}}", "empty"),
        # References within an inserted value are not replaced.
        ("{{parameters.topic}}", "{{steps.big}}"),
        (["{{parameters.n}}", {"deep": "{{parameters.n}}"}, 1.5, None], [3, {"deep": 3}, 1.5, None]),
    ],
)
def test_references_in_arguments_become_values(template: JsonValue, value: JsonValue) -> None:
    assert VALUES.arguments("step", {"argument": template}) == {"argument": value}


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{steps.found.matches.1.path}}", "step: steps.found.matches.1.path has no value."),
        ("{{parameters.none}}", "step: parameters.none has no value."),
    ],
)
def test_a_missing_value_ends_the_run(template: str, reason: str) -> None:
    with pytest.raises(WorkflowFailed, match=reason):
        VALUES.text("step", template)


@pytest.mark.parametrize("arguments", [{"a": "{{steps.big}}" * 2}, {"a": ["{{steps.big}}", "{{steps.big}}"]}])
def test_values_that_are_too_long_together_end_the_run(arguments: JsonObject) -> None:
    """A step may refer to a long result any number of times."""
    values = Values({}, {"big": "x" * (MAX_FILLED_CHARS - 10)})

    assert len(values.text("step", "{{steps.big}}")) == MAX_FILLED_CHARS - 10
    with pytest.raises(WorkflowFailed, match="too long"):
        values.arguments("step", arguments)
