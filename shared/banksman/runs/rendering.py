"""The text of a result, where a result is the answer itself (ruling "Result shape")."""

from __future__ import annotations

import json

from banksman.contracts.tools import ToolResult

ANSWER_FIELDS = {"bash": "stdout", "read_file": "content", "web_fetch": "body"}
"""For tools whose result is a text: the field of the result that holds it."""

MORE_FIELD = "more"
"""The field of a cut result that tells the model how to read on."""


def result_json(result: ToolResult) -> str:
    """The result's object as JSON text, what a model of the OpenAI format is given."""
    return json.dumps(result.content, ensure_ascii=False)


def answer_text(name: str, result: ToolResult) -> str:
    """What a person reads when the result of `name` is the run's answer."""
    field = ANSWER_FIELDS.get(name)
    text = result.content.get(field) if field else None
    if isinstance(text, str) and not result.is_error:
        return text
    return result_json(result)
