"""The replies of request handlers in an AsyncAPI document."""

from __future__ import annotations

import re
from types import NoneType, UnionType
from typing import Any, get_args
from urllib.parse import quote

from pydantic import BaseModel

from banksman.contracts.frames import ErrorFrame


def add_replies(document: dict[str, Any], name: str, item: Any) -> None:
    """Add the reply of a request and its error envelope, which FastStream's document lacks.

    Args:
        document: The document, which is changed.
        name: The name of the channel and of its operation.
        item: FastStream's description of the handler.
    """
    components = document["components"]
    channel = quote(name, safe="")
    references: list[dict[str, str]] = []
    for kind, models in (("Reply", _reply_models(item)), ("Error", (ErrorFrame,))):
        if not models:
            continue
        payloads = [_add_schema(components["schemas"], model) for model in models]
        message = f"{name}:{kind}"
        components["messages"][message] = {
            "title": message,
            "payload": payloads[0] if len(payloads) == 1 else {"anyOf": payloads},
        }
        document["channels"][name]["messages"][kind] = {
            "$ref": f"#/components/messages/{quote(message, safe=':')}"
        }
        references.append({"$ref": f"#/channels/{channel}/messages/{kind}"})
    document["operations"][name]["reply"] = {
        "channel": {"$ref": f"#/channels/{channel}"},
        "messages": references,
    }


def _reply_models(item: Any) -> tuple[type[BaseModel], ...]:
    """Return the models that a handler declares as its reply; none for bytes or no reply."""
    declared = item.dependant.serializer.response_option["return"].field_type
    found = get_args(declared) if isinstance(declared, UnionType) else (declared,)
    return tuple(one for one in found if one not in (NoneType, None, bytes))


def _add_schema(schemas: dict[str, Any], model: type[BaseModel]) -> dict[str, str]:
    """Add the schema of a reply model, and return the reference to it."""
    # The names of generic models have brackets, which AsyncAPI does not permit.
    name = re.sub(r"[^\w.-]+", "_", model.__name__).strip("_")
    if name not in schemas:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}", mode="serialization")
        schemas |= schema.pop("$defs", {})
        schemas[name] = schema
    return {"$ref": f"#/components/schemas/{name}"}
