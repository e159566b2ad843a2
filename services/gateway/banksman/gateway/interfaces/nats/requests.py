"""The requests over NATS: decodes body, subject and headers, and reports failures without a reply subject."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel, TypeAdapter

from banksman.bus.connection import Bus
from banksman.bus.control_plane.control import Decode
from banksman.bus.dead import NATS_API, dead_letter
from banksman.bus.jetstream import count_below
from banksman.bus.messages import Message
from banksman.bus.names import DEAD
from banksman.contracts import subjects
from banksman.contracts.errors import BadInput, BanksmanError
from banksman.contracts.frames import REQUEST_ID, SCHEMA_VERSION, error_frame
from banksman.contracts.ids import conversation_of
from banksman.contracts.wire import WIRE_VERSION, JsonObject, parse, parse_as
from banksman.gateway.operation.declaration import Operation
from banksman.gateway.operation.parameters import unrepeated_id

logger = logging.getLogger(__name__)

OBJECT: TypeAdapter[JsonObject] = TypeAdapter(JsonObject)
MAX_LETTERS = 1_000
"""Maximum dead-lettered requests of all tenants together. Further failed requests are only logged."""
MAX_LETTER_BYTES = 64 * 1024
"""Maximum bytes of a request that is dead-lettered."""


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
    """Build the frame of a request from its body, subject and headers, which must not differ."""
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
    version = message.headers.get(SCHEMA_VERSION, str(WIRE_VERSION))
    if version != str(WIRE_VERSION):
        raise BadInput(SCHEMA_VERSION, version, f"version {WIRE_VERSION}")


@dataclass(frozen=True, slots=True)
class RequestFailures:
    bus: Bus
    confidential: frozenset[str]
    """Operations whose requests may contain secrets: reports of their failures omit the bodies."""

    async def report(self, request: Message, error: BanksmanError) -> None:
        _, tenant, *action = request.subject.split(".")
        secret = ".".join(action[:2]) in self.confidential
        if secret and isinstance(error, BadInput):
            error = BadInput(error.field, None, error.expected)
        await self.bus.publish(subjects.api(tenant, "error"), _error_frame(request, error))
        # A request cannot be replayed, and its sender receives the error: without room in DEAD little is
        # lost.
        if len(request.data) > MAX_LETTER_BYTES or not await self._has_room():
            logger.warning("%s: a failed request was not dead-lettered: %s", request.subject, error)
            return
        await dead_letter(
            self.bus,
            subject=request.subject,
            stream=NATS_API,
            stream_seq=time.time_ns(),
            reason=str(error),
            payload=b"" if secret else request.data,
            headers=request.headers,
        )

    async def _has_room(self) -> bool:
        return await count_below(self.bus, DEAD, subjects.all_of("dead", NATS_API)) < MAX_LETTERS


def _error_frame(request: Message, error: BanksmanError) -> bytes:
    """Return the error frame of a request: `reply_to` is its id, and the details name its subject."""
    frame = error_frame(error, request.headers.get(REQUEST_ID) or _id_in(request.data))
    details = {**(frame.details or {}), "subject": request.subject}
    return frame.model_copy(update={"details": details}).model_dump_json(exclude_none=True).encode()


def _id_in(body: bytes) -> str | None:
    try:
        value: Any = json.loads(body)
    except ValueError:
        return None
    found = cast(dict[str, Any], value).get("id") if isinstance(value, dict) else None
    return found if isinstance(found, str) and len(found) <= 128 else None
