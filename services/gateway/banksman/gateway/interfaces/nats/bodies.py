"""Decode the requests over NATS: body, subject and headers of a message together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from pydantic import BaseModel, TypeAdapter

from banksman.bus.control_plane.control import Decode
from banksman.bus.messages import Message
from banksman.contracts.api import REQUEST_ID, SCHEMA_VERSION
from banksman.contracts.errors import BadInput
from banksman.contracts.ids import conversation_of
from banksman.contracts.wire import WIRE_VERSION, JsonObject, parse, parse_as
from banksman.gateway.operation.declaration import Operation
from banksman.gateway.operation.parameters import unrepeated_id

OBJECT: TypeAdapter[JsonObject] = TypeAdapter(JsonObject)


def api_body(operations: Iterable[Operation]) -> Callable[[Any], Decode]:
    """Return the function that returns the decoder for the declared type of a handler's body.

    Some fields of a frame are not in the body but in the subject and the headers. An empty body is an empty
    object.
    """
    named = {one.frame: one.named for one in operations if one.frame is not None}

    def decoder(declared: Any) -> Decode:
        if declared in named:
            return lambda message: _frame(declared, named[declared], message)
        if declared is None:
            return _check_version
        return lambda message: _body(declared, message)

    return decoder


def _frame(declared: type[BaseModel], field: str | None, message: Message) -> BaseModel:
    """Build the frame of a request from its body, subject and headers.

    Raises:
        BadInput: A field is wrong, or body and subject differ.
    """
    _check_version(message)
    body = cast(dict[str, Any], parse_as(OBJECT, message.data or b"{}"))
    _, _, *words, last = message.subject.split(".")
    _fill_from_subject(body, "type", ".".join([*words, last] if field is None else words))
    body["id"] = message.headers.get(REQUEST_ID) or body.get("id") or unrepeated_id()
    if field is not None:
        _fill_from_subject(body, field, last)
    if field is not None and field not in declared.model_fields:
        # A run is named by its id, which begins with the id of its conversation.
        in_subject = body.pop(field)
        run_id = body.get("run_id")
        if isinstance(run_id, str) and conversation_of(run_id) != in_subject:
            raise BadInput("run_id", run_id, f"a run of conversation {in_subject}, which the subject names")
    return parse(declared, body)


def _body(declared: type[BaseModel], message: Message) -> Any:
    _check_version(message)
    return parse(declared, message.data or b"{}")


def _fill_from_subject(body: dict[str, Any], field: str, value: str) -> None:
    if body.setdefault(field, value) != value:
        raise BadInput(field, body[field], f"{value!r}, as in the subject, or nothing")


def _check_version(message: Message) -> None:
    """Check the version of the frames.

    Raises:
        BadInput: The version is not supported.
    """
    version = message.headers.get(SCHEMA_VERSION, str(WIRE_VERSION))
    if version != str(WIRE_VERSION):
        raise BadInput(SCHEMA_VERSION, version, f"version {WIRE_VERSION}")
