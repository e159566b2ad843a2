"""The AsyncAPI document: the requests of the API, and the subjects that clients share with other services."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast
from urllib.parse import quote

from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode

from banksman.contracts.events import Commit
from banksman.contracts.frames import REQUEST_ID, SCHEMA_VERSION, ErrorFrame
from banksman.contracts.live_output import Delta, ModelWaiting
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
from banksman.gateway.interfaces.nats.endpoints import COMMON_ERRORS, Endpoint
from banksman.gateway.live.event_frames import event_schema

VERSION = "3.1.0"
Json = dict[str, Any]
ANY_OBJECT: Json = {"type": "object"}
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
        "model waiting",
        "delta.{tenant}.{conversation_id}",
        ModelWaiting,
        "A model request failed and is sent again after a pause. It may be lost.",
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


def asyncapi(endpoints: Iterable[Endpoint], version: str = "1", description: str | None = None) -> Json:
    info = {"title": "Banksman", "version": version, "description": description}
    document: Json = {
        "asyncapi": VERSION,
        "info": {name: value for name, value in info.items() if value is not None},
        "defaultContentType": "application/json",
        "channels": {},
        "operations": {},
        "components": {"messages": {}, "schemas": {}},
    }
    listed = sorted(endpoints, key=lambda endpoint: endpoint.title)
    # Before all replies: of a model that is in both, the document has the schema of requests.
    bodies = {one.title: {"Request": _request_body(document, one)} for one in listed}
    event = _event_schema(document)
    for endpoint in listed:
        _add_endpoint(document, endpoint, bodies[endpoint.title])
    replay = {"description": "An event as on the websocket; a message without a body ends them."}
    document["components"]["messages"]["replay:Reply"] |= replay | {"payload": event}
    for title, address, body, text in PUBLISHED:
        _add(document, title, address, "send", {"Message": _schema(document, body)}, text)
    for subject, body, reply, text in REGISTRIES:
        request = ANY_OBJECT if body is None else _schema(document, body)
        kinds = {
            "Request": request,
            "Reply": _schema(document, reply),
            "Error": _schema(document, ErrorFrame),
        }
        _add(document, subject, subject, "receive", kinds, text)
    # Sorted by names, so that documents of two versions can be compared.
    for part in (document, document["components"]):
        for name in ("channels", "operations", "messages", "schemas"):
            part |= {name: dict(sorted(part[name].items()))} if name in part else {}
    return cast(Json, _rewritten(document, _with_discriminator))


def _request_body(document: Json, endpoint: Endpoint) -> Json:
    """Return the schema of a request's body.

    The body of a frame may omit the fields that subject and headers contain: type, id, and parameter.
    """
    model = endpoint.body
    if model is None:
        return ANY_OBJECT
    reference = _schema(document, model, "validation")
    if "type" not in model.model_fields:
        return reference
    schemas, name = document["components"]["schemas"], model.__name__
    implied = {"type", "id", *endpoint.parameters}
    required = [field for field in schemas[name]["required"] if field not in implied]
    schemas[f"requests.{name}"] = {**schemas[name], "required": required}
    return {"$ref": f"#/components/schemas/requests.{name}"}


def _event_schema(document: Json) -> Json:
    """Add the frames of events; return the reference to the schema of all."""
    schema, schemas = event_schema(), document["components"]["schemas"]
    schemas |= {f"frames.{name}": _rewritten(value, _in_frames) for name, value in schema["$defs"].items()}
    schemas["frames.Event"] = {"oneOf": _rewritten(schema["oneOf"], _in_frames)}
    return {"$ref": "#/components/schemas/frames.Event"}


def _add_endpoint(document: Json, endpoint: Endpoint, bodies: Json) -> None:
    title = endpoint.title
    replies = [_schema(document, model) for model in endpoint.replies]
    # `replay` declares no reply: it sends events.
    bodies["Reply"] = replies[0] if len(replies) == 1 else {"anyOf": replies}
    bodies["Error"] = _schema(document, ErrorFrame)
    text = inspect.cleandoc(endpoint.operation.handler.__doc__ or "")
    _add(document, title, endpoint.address, "receive", bodies, text)
    codes = [code.value for code in (*endpoint.operation.errors, *COMMON_ERRORS)]
    document["operations"][title]["x-error-codes"] = codes
    messages = document["components"]["messages"]
    messages[f"{title}:Request"]["headers"] = REQUEST_HEADERS
    messages[f"{title}:Error"]["description"] = f"One of the codes {', '.join(codes)}."


def _add(
    document: Json, title: str, address: str, action: str, bodies: Mapping[str, Json], text: str
) -> None:
    """Add a channel with its operation; `bodies` are the schemas by the kind of the message."""
    escaped = quote(title, safe="")
    messages = document["components"]["messages"]
    messages |= {
        f"{title}:{kind}": {"title": f"{title}:{kind}", "payload": body} for kind, body in bodies.items()
    }
    document["channels"][title] = {
        "address": address,
        "description": text,
        "parameters": _parameters([part[1:-1] for part in address.split(".") if part.startswith("{")]),
        "messages": {kind: {"$ref": f"#/components/messages/{escaped}:{kind}"} for kind in bodies},
    }
    channel = {"$ref": f"#/channels/{escaped}"}
    request, *replies = [{"$ref": f"#/channels/{escaped}/messages/{kind}"} for kind in bodies]
    operation = {"action": action, "channel": channel, "description": text, "messages": [request]}
    reply = {"reply": {"channel": channel, "messages": replies}} if replies else {}
    document["operations"][title] = operation | reply


def _schema(document: Json, model: type[BaseModel], mode: JsonSchemaMode = "serialization") -> Json:
    # The names of generic models have brackets, which AsyncAPI does not permit.
    name = re.sub(r"[^\w.-]+", "_", model.__name__).strip("_")
    schemas = document["components"]["schemas"]
    if name not in schemas:
        schema = model.model_json_schema(ref_template="#/components/schemas/{model}", mode=mode)
        schemas |= schema.pop("$defs", {})
        schemas[name] = schema
    return {"$ref": f"#/components/schemas/{name}"}


def _parameters(names: Iterable[str]) -> Json:
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


def _with_discriminator(value: Json) -> Json:
    """Return an object with AsyncAPI's discriminator, which is a name; that of OpenAPI is an object."""
    match value:
        case {"discriminator": {"propertyName": name}}:
            return {**value, "discriminator": name}
        case _:
            return value
