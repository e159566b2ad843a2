"""The subject reference: FastStream's AsyncAPI document, with our wire models as the bodies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import quote

from pydantic import TypeAdapter


@dataclass(frozen=True, slots=True)
class Bodies:
    """What travels on one channel; None where it is no JSON of ours."""

    received: Any = None
    """A model, or a union of models."""
    answered: Any = None


def with_bodies(document: dict[str, Any], channels: dict[str, Bodies]) -> dict[str, Any]:
    """Put the schemas of our models in the place of FastStream's empty payloads.

    FastStream knows none, since it hands our handlers the bytes.

    Args:
        document: An AsyncAPI 3 document.
        channels: By the channel's name.
    """
    components = cast(dict[str, Any], document["components"])
    schemas = cast(dict[str, Any], components.setdefault("schemas", {}))
    for name, bodies in channels.items():
        message = cast(dict[str, Any], components["messages"][f"{name}:SubscribeMessage"])
        message["title"] = name
        message["payload"] = _schema(bodies.received, schemas)
        if bodies.answered is not None:
            _add_answer(document, name, bodies.answered, schemas)
    schemas.pop("EmptyPayload", None)
    return document


def _add_answer(document: dict[str, Any], name: str, model: Any, schemas: dict[str, Any]) -> None:
    reply = f"{name}:Reply"
    channel = quote(name, safe="")
    document["components"]["messages"][reply] = {"title": reply, "payload": _schema(model, schemas)}
    document["channels"][name]["messages"]["Reply"] = {
        "$ref": f"#/components/messages/{quote(reply, safe=':')}"
    }
    document["operations"][name]["reply"] = {
        "channel": {"$ref": f"#/channels/{channel}"},
        "messages": [{"$ref": f"#/channels/{channel}/messages/Reply"}],
    }


def _schema(model: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    if model is None:
        return {"description": "Bytes."}
    schema = TypeAdapter(model).json_schema(ref_template="#/components/schemas/{model}")
    schemas.update(schema.pop("$defs", {}))
    if not isinstance(model, type):
        return schema
    schemas[model.__name__] = schema
    return {"$ref": f"#/components/schemas/{model.__name__}"}
