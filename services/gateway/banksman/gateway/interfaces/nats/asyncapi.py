"""The AsyncAPI document: the requests of the API, and the subjects that clients share with other services."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast
from urllib.parse import quote

from pydantic import BaseModel

from banksman.contracts.calls import Delta
from banksman.contracts.events import Commit
from banksman.contracts.frames import REQUEST_ID, SCHEMA_VERSION, ErrorFrame
from banksman.contracts.registry import (
    RegisterTool,
    RegisterWorkflow,
    ToolList,
    ToolRegistration,
    WithdrawTool,
    WithdrawWorkflow,
    WorkflowRegistration,
)
from banksman.contracts.wire import WIRE_VERSION
from banksman.contracts.work import ApprovalRequest
from banksman.contracts.workflows import ProgressReported, ReportProgress
from banksman.gateway.interfaces.nats.endpoints import COMMON_ERRORS, ApiEndpoints, Endpoint
from banksman.gateway.live.event_frames import event_schema

VERSION = "3.1.0"
Json = dict[str, Any]
REQUEST_HEADERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        REQUEST_ID: {
            "type": "string",
            "maxLength": 128,
            "description": "Identifies the request for 24 hours: a repeat gets the same reply. "
            "Defaults to the body's `id`.",
        },
        SCHEMA_VERSION: {
            "type": "string",
            "const": str(WIRE_VERSION),
            "description": "Version of the bodies.",
        },
    },
}
PARAMETERS = {
    "tenant": "The tenant, to whose account the client belongs.",
    "run_id": "The run. Its id begins with that of its conversation.",
    "approval_id": "The approval request.",
    "request_id": "The request for a value.",
    "workflow": "The name of the workflow.",
    "tool": "The name of the tool.",
    "prompt_id": "The system prompt.",
    "secret": "The name of the secret.",
    "key_id": "The API key.",
    "server_id": "The id of the MCP server.",
}
"""Descriptions of parameters. Any other one is described by its name: `schedule_id` is "The schedule."."""
_COMMIT = "A stored commit. `replay` sends the same events as frames."
PUBLISHED: tuple[tuple[str, str, type[BaseModel], str], ...] = (
    ("live", "live.{tenant}.{conversation_id}", Commit, _COMMIT),
    (
        "delta",
        "delta.{tenant}.{conversation_id}",
        Delta,
        "A piece of text that a model writes. It may be lost; `message.completed` replaces all pieces.",
    ),
    (
        "approval request",
        "approval.request.{tenant}.{approval_id}",
        ApprovalRequest,
        "A new approval request, or request for a value, of the tenant.",
    ),
    (
        "api error",
        "api.{tenant}.error",
        ErrorFrame,
        "The error of a request without a reply subject: `reply_to` is its id, `details.subject` its "
        "subject.",
    ),
)
"""Title, subject, body and description of each subject that clients may subscribe to."""
REGISTRIES: tuple[tuple[str, type[BaseModel] | None, type[BaseModel], str], ...] = (
    ("tool.register", RegisterTool, ToolRegistration, "Register a tool, or renew its registration."),
    ("tool.withdraw", WithdrawTool, ToolRegistration, "Withdraw a tool."),
    ("tool.list", None, ToolList, "List the tools that the models of the tenant may call."),
    ("workflow.register", RegisterWorkflow, WorkflowRegistration, "Register a workflow, or change it."),
    ("workflow.withdraw", WithdrawWorkflow, WorkflowRegistration, "Withdraw a workflow."),
    ("workflow.progress", ReportProgress, ProgressReported, "Store the progress of a run during its turn."),
)
"""Subject, body, reply and description of the requests of tool and workflow servers."""


def asyncapi(handlers: Mapping[str, Any], endpoints: ApiEndpoints) -> Json:
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
        bodies = {"Request": body, "Reply": reply, "Error": ErrorFrame}
        _add(document, subject, subject, "receive", bodies, text)
    _sort(document)
    return cast(Json, _rewritten(document, _without_discriminator))


def _sort(document: Json) -> None:
    """Sort the document by names.

    FastStream holds its handlers in a set of weak references: their order differs between processes.
    """
    components = document["components"]
    for part, names in ((document, ("channels", "operations")), (components, ("messages", "schemas"))):
        part |= {name: dict(sorted(part[name].items())) for name in names}


def _complete(document: Json, title: str, channel: Json, endpoint: Endpoint) -> None:
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
    codes = [code.value for code in (*endpoint.operation.errors, *COMMON_ERRORS)]
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
    schema = event_schema()
    schemas = document["components"]["schemas"]
    schemas |= {f"frames.{name}": _rewritten(value, _in_frames) for name, value in schema["$defs"].items()}
    schemas["frames.Event"] = {"oneOf": _rewritten(schema["oneOf"], _in_frames)}
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
    escaped = quote(title, safe="")
    references: list[Json] = []
    messages: Json = {}
    for kind, body in bodies.items():
        payload = {"type": "object"} if body is None else _schema(document, body)
        name = f"{title}:{kind}"
        document["components"]["messages"][name] = {"title": name, "payload": payload}
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
    operation: Json = {"action": action, "channel": channel, "description": text, "messages": references[:1]}
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
    named = {name: f"The {name.removesuffix('_id').replace('_', ' ')}." for name in names}
    return {name: {"description": PARAMETERS.get(name, text)} for name, text in named.items()}


def _rewritten(value: Any, change: Callable[[Json], Json]) -> Any:
    """Return a part of a document in which `change` has replaced every object."""
    match value:
        case dict():
            return {name: _rewritten(item, change) for name, item in change(cast(Json, value)).items()}
        case list():
            return [_rewritten(item, change) for item in cast(list[Any], value)]
        case _:
            return value


def _in_frames(value: Json) -> Json:
    target = value.get("$ref")
    if not isinstance(target, str):
        return value
    return {**value, "$ref": target.replace("#/$defs/", "#/components/schemas/frames.")}


def _without_discriminator(value: Json) -> Json:
    """Return an object without OpenAPI's discriminator, which is an object; that of AsyncAPI is a name."""
    given = value.get("discriminator")
    is_openapi = isinstance(given, dict) and "propertyName" in given
    return {name: item for name, item in value.items() if name != "discriminator"} if is_openapi else value
