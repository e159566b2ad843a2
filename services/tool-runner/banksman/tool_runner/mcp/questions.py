"""The forms in which servers request a value from a user (elicitation), and the answers to them."""

from __future__ import annotations

from typing import Any, Final, cast

import mcp_types as types
from pydantic import ValidationError

from banksman.contracts.tools import AskedInput
from banksman.contracts.wire import JsonObject, json_bytes
from banksman.tool_runner.mcp.connection import ConnectionState
from banksman.tool_runner.mcp.held_calls import Questions

MAX_FORM_BYTES: Final = 16 * 1024
"""Maximum bytes of the schema of a requested value."""
MAX_FIELDS: Final = 50
_FIELDS: Final = frozenset({"string", "number", "integer", "boolean", "array"})
_CANCELLED: Final = types.ElicitResult(action="cancel")
_REFUSED: Final = types.ErrorData(
    code=types.INVALID_PARAMS,
    message=f"only a form is shown to the user: an object of at most {MAX_FIELDS} plain fields",
)


async def answered(
    state: ConnectionState, params: types.ElicitRequestParams
) -> types.ElicitResult | types.ErrorData:
    """Pass a request to the user of the newest call; without a call, the server gets `cancel`."""
    if (questions := state.questions) is None:
        return _CANCELLED
    if (asked := _form(params, questions)) is None:
        return _REFUSED
    answer = await questions.ask(asked)
    match answer.outcome if answer is not None else None:
        case "provided" if answer is not None:
            return types.ElicitResult(action="accept", content=cast(dict[str, Any], answer.value))
        case "declined":
            return types.ElicitResult(action="decline")
        case _:
            return _CANCELLED


def _form(params: types.ElicitRequestParams, questions: Questions) -> AskedInput | None:
    """Return what a server requests; None unless it is a bounded form of plain fields."""
    if not isinstance(params, types.ElicitRequestFormParams):
        return None
    secrets = questions.secrets
    schema = cast(JsonObject, secrets.of_content(params.requested_schema))
    fields = schema.get("properties", {})
    if schema.get("type") != "object" or not isinstance(fields, dict) or len(fields) > MAX_FIELDS:
        return None
    plain = all(isinstance(one, dict) and one.get("type") in _FIELDS for one in fields.values())
    if not plain or json_bytes(schema) > MAX_FORM_BYTES:
        return None
    try:
        return AskedInput(message=secrets.of(params.message), schema=schema, expires_s=questions.wait_s)
    except ValidationError:
        return None
