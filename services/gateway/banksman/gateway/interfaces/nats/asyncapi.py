"""The AsyncAPI document: the requests of the API, and the subjects that clients share with other services."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast
from urllib.parse import quote

from pydantic import BaseModel

from banksman.contracts.frames import ErrorFrame
from banksman.gateway.interfaces.nats.endpoints import COMMON_ERRORS, ApiEndpoints, Endpoint
from banksman.gateway.interfaces.nats.shared_subjects import (
    PARAMETERS,
    PUBLISHED,
    REGISTRIES,
    REQUEST_HEADERS,
)
from banksman.gateway.live.event_frames import event_schema

VERSION = "3.1.0"
Json = dict[str, Any]


def asyncapi(handlers: Mapping[str, Any], endpoints: ApiEndpoints) -> Json:
    """Return the AsyncAPI document.

    Args:
        handlers: FastStream's document of the handlers, without parameters, headers and errors.
        endpoints: The parameters and errors of each request.
    """
    document: Json = json.loads(json.dumps(handlers))
    document["asyncapi"] = VERSION
    # The address of the broker differs between deployments and is not part of the contract.
    document.pop("servers", None)
    for title, channel in document["channels"].items():
        _complete(document, title, channel, endpoints.by_title[title])
    document["components"]["schemas"].pop("EmptyPayload", None)
    _add_frames(document)
    for title, address, body, text in PUBLISHED:
        _add(document, title, address, "send", {"Message": body}, text)
    for subject, body, reply, text in REGISTRIES:
        _add(
            document,
            subject,
            subject,
            "receive",
            {"Request": body, "Reply": reply, "Error": ErrorFrame},
            text,
        )
    _sort(document)
    return cast(Json, _without_discriminators(document))


def _sort(document: Json) -> None:
    """Sort the document by names.

    FastStream holds its handlers in a set of weak references: their order differs between processes.
    """
    components = document["components"]
    for part, names in ((document, ("channels", "operations")), (components, ("messages", "schemas"))):
        part |= {name: dict(sorted(part[name].items())) for name in names}


def _complete(document: Json, title: str, channel: Json, endpoint: Endpoint) -> None:
    """Add the parameters, headers and errors of a request."""
    channel.pop("servers", None)
    channel.pop("bindings", None)
    channel["address"] = endpoint.address
    channel["parameters"] = _parameters(endpoint.parameters)
    channel["messages"]["Request"] = channel["messages"].pop("SubscribeMessage")
    messages = document["components"]["messages"]
    request = messages[f"{title}:Request"] = messages.pop(f"{title}:SubscribeMessage")
    request.pop("correlationId", None)
    request |= {"title": f"{title}:Request", "headers": REQUEST_HEADERS}
    request["payload"] = _request_body(document, request["payload"]["$ref"].rpartition("/")[2], endpoint)
    channel["messages"]["Request"] = {"$ref": f"#/components/messages/{quote(title, safe='')}:Request"}
    operation = document["operations"][title]
    operation["messages"] = [{"$ref": f"#/channels/{quote(title, safe='')}/messages/Request"}]
    operation["description"] = channel["description"]
    codes = [code.value for code in (*endpoint.errors, *COMMON_ERRORS)]
    messages[f"{title}:Error"]["description"] = f"One of the codes {', '.join(codes)}."
    operation["x-error-codes"] = codes


def _request_body(document: Json, name: str, endpoint: Endpoint) -> Json:
    """Return the schema of a request's body.

    The body of a frame may omit the fields that subject and headers contain: type, id, and parameter.
    """
    schemas = document["components"]["schemas"]
    if name == "EmptyPayload":
        return {"type": "object"}
    implied = {"type", "id", *endpoint.parameters} if "type" in schemas[name]["properties"] else set[str]()
    if implied:
        required = [field for field in schemas[name]["required"] if field not in implied]
        schemas[f"requests.{name}"] = {**schemas[name], "required": required}
        name = f"requests.{name}"
    return {"$ref": f"#/components/schemas/{name}"}


def _add_frames(document: Json) -> None:
    """Add the frames that a replay sends, one message each."""
    schema = event_schema()
    rename = _references("#/$defs/", "#/components/schemas/frames.")
    schemas = document["components"]["schemas"]
    schemas |= {f"frames.{name}": rename(value) for name, value in schema["$defs"].items()}
    schemas["frames.Event"] = {"oneOf": rename(schema["oneOf"])}
    messages = document["components"]["messages"]
    messages["replay:Reply"] = {
        "title": "replay:Reply",
        "description": "An event as on the websocket; a message without a body ends them.",
        "payload": {"$ref": "#/components/schemas/frames.Event"},
    }
    channel = document["channels"]["replay"]
    channel["messages"]["Reply"] = {"$ref": "#/components/messages/replay:Reply"}
    reply = {"$ref": "#/channels/replay/messages/Reply"}
    document["operations"]["replay"]["reply"]["messages"].insert(0, reply)


def _add(
    document: Json,
    title: str,
    address: str,
    action: str,
    bodies: Mapping[str, type[BaseModel] | None],
    text: str,
) -> None:
    """Add a channel, its messages and its operation, which sends or receives the first body."""
    escaped = quote(title, safe="")
    references: list[Json] = []
    messages: Json = {}
    for kind, body in bodies.items():
        payload = {"type": "object"} if body is None else _schema(document, body)
        document["components"]["messages"][f"{title}:{kind}"] = {
            "title": f"{title}:{kind}",
            "payload": payload,
        }
        messages[kind] = {"$ref": f"#/components/messages/{escaped}:{kind}"}
        references.append({"$ref": f"#/channels/{escaped}/messages/{kind}"})
    names = [part[1:-1] for part in address.split(".") if part.startswith("{")]
    document["channels"][title] = {
        "address": address,
        "description": text,
        "parameters": _parameters(tuple(names)),
        "messages": messages,
    }
    channel = {"$ref": f"#/channels/{escaped}"}
    operation: Json = {
        "action": action,
        "channel": channel,
        "description": text,
        "messages": references[:1],
    }
    if len(references) > 1:
        operation["reply"] = {"channel": channel, "messages": references[1:]}
    document["operations"][title] = operation


def _schema(document: Json, model: type[BaseModel]) -> Json:
    schemas = document["components"]["schemas"]
    if model.__name__ not in schemas:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}", mode="serialization")
        schemas |= schema.pop("$defs", {})
        schemas[model.__name__] = schema
    return {"$ref": f"#/components/schemas/{model.__name__}"}


def _parameters(names: tuple[str, ...]) -> Json:
    return {name: {"description": PARAMETERS.get(name) or _named(name)} for name in names}


def _named(parameter: str) -> str:
    """Return the description of a parameter such as `schedule_id`."""
    return f"The {parameter.removesuffix('_id').replace('_', ' ')}."


def _references(old: str, new: str) -> Callable[[Any], Any]:
    def renamed(value: Any) -> Any:
        match value:
            case {"$ref": str() as target, **rest}:
                return {"$ref": target.replace(old, new), **rest}
            case dict():
                return {name: renamed(item) for name, item in cast(Json, value).items()}
            case list():
                return [renamed(item) for item in cast(list[Any], value)]
            case _:
                return value

    return renamed


def _without_discriminators(value: Any) -> Any:
    """Return a schema without OpenAPI's discriminators, which are objects; those of AsyncAPI are names."""
    match value:
        case dict():
            given = cast(Json, value)
            return {
                name: _without_discriminators(item)
                for name, item in given.items()
                if not (name == "discriminator" and isinstance(item, dict) and "propertyName" in item)
            }
        case list():
            return [_without_discriminators(item) for item in cast(list[Any], value)]
        case _:
            return value
