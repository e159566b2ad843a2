"""Add the tenant's system prompt that a request names by `prompt_id`."""

from __future__ import annotations

import json
from typing import Any, assert_never, cast

from banksman.contracts.errors import BadInput
from banksman.gateway.settings import Dialect

PROMPT_ID = "prompt_id"


def with_prompt(body: dict[str, Any], prompt: str, dialect: Dialect) -> bytes:
    """Return the body of a request with a system prompt before its own, and without `prompt_id`.

    Raises:
        BadInput: The body has no place for a prompt.
    """
    rest = {name: value for name, value in body.items() if name != PROMPT_ID}
    match dialect:
        case "openai":
            messages = rest.get("messages")
            if not isinstance(messages, list):
                raise BadInput("messages", messages, "a list of messages")
            system = {"role": "system", "content": prompt}
            rest["messages"] = [system, *cast(list[Any], messages)]
        case "anthropic":
            own = rest.get("system")
            if isinstance(own, list):
                rest["system"] = [{"type": "text", "text": prompt}, *cast(list[Any], own)]
            else:
                rest["system"] = _before(prompt, own)
        case "responses":
            rest["instructions"] = _before(prompt, rest.get("instructions"))
        case _:
            assert_never(dialect)
    return json.dumps(rest, ensure_ascii=False).encode()


def _before(prompt: str, own: object) -> str:
    return f"{prompt}\n\n{own}" if isinstance(own, str) and own else prompt
