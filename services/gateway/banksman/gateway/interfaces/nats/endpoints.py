"""Makes FastStream endpoints on `api.{tenant}.>` from operations, and decodes their requests."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from types import NoneType
from typing import Any, cast

from faststream import BaseMiddleware, ContextRepo, StreamMessage
from faststream.nats import NatsRouter
from pydantic import BaseModel, TypeAdapter

from banksman.bus.connection import Bus
from banksman.bus.control_plane.control import Decode, Received
from banksman.bus.dead import NATS_API, dead_letter
from banksman.bus.errors import error_envelope
from banksman.bus.jetstream import count_below
from banksman.bus.messages import Message
from banksman.bus.names import DEAD
from banksman.contracts import subjects
from banksman.contracts.errors import BadInput, BanksmanError, ErrorCode
from banksman.contracts.frames import REQUEST_ID, SCHEMA_VERSION, Ack, error_frame
from banksman.contracts.ids import conversation_of
from banksman.contracts.subjects import ANY
from banksman.contracts.wire import WIRE_VERSION, JsonObject, Stored, parse, parse_as
from banksman.gateway.interfaces.websocket.transport import id_in
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.declaration import Operation
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.operation.intake import JsonIntake
from banksman.gateway.operation.parameters import (
    ServiceMap,
    arguments_of,
    parameters_of,
    path_value,
    reply_types,
    request_model,
    unrepeated_id,
)
from banksman.runtime.tracing import HEADER, traced

logger = logging.getLogger(__name__)

QUEUE = "gateways"
"""The queue group that delivers each request to one gateway."""
USER = "nats"
"""The user that logs show for clients of this API."""
COMMON_ERRORS = (
    ErrorCode.BAD_REQUEST,
    ErrorCode.RATE_LIMITED,
    ErrorCode.BUSY,
    ErrorCode.TOO_LARGE,
    ErrorCode.UNAVAILABLE,
    ErrorCode.STORAGE_FULL,
    ErrorCode.INTERNAL,
)
"""The errors of every request."""
OBJECT: TypeAdapter[JsonObject] = TypeAdapter(JsonObject)
MAX_LETTERS = 1_000
"""Maximum dead-lettered requests of all tenants together. Further failed requests are only logged."""
MAX_LETTER_BYTES = 64 * 1024
"""Maximum bytes of a request that is dead-lettered."""


class ReplyTooLarge(BanksmanError):
    code = ErrorCode.TOO_LARGE

    def __init__(self, size: int, max_bytes: int) -> None:
        super().__init__(
            f"the reply has {size} bytes, more than {max_bytes}; request less, for example by `limit`"
        )


class Deleted(Stored):
    """The id or path of the object that was deleted or withdrawn."""

    id: str


@dataclass(frozen=True, slots=True)
class Endpoint:
    operation: Operation

    @property
    def address(self) -> str:
        """The subject with its parameters: `api.{tenant}.chat.send.{conversation_id}`."""
        words = (*self.operation.name.split("."), *(f"{{{name}}}" for name in self.parameters[1:]))
        return ".".join(("api", "{tenant}", *words))

    @property
    def parameters(self) -> tuple[str, ...]:
        last = self.operation.subject_parameter
        return ("tenant",) if last is None else ("tenant", last)

    @property
    def title(self) -> str:
        """The words of the subject, separated by spaces."""
        return self.operation.name.replace(".", " ")

    @property
    def body(self) -> type[BaseModel] | None:
        """The model of a request's body; None if it has none."""
        return self.operation.frame or request_model(self.operation)

    @property
    def deletes(self) -> bool:
        """Whether the reply only names what was deleted: over HTTP it has no content."""
        return reply_types(self.operation) == (NoneType,) and not self.operation.not_over_http

    @property
    def replies(self) -> tuple[type[BaseModel], ...]:
        """The models of replies, besides errors; empty if the handler sends them itself."""
        if self.deletes:
            return (Deleted,)
        return tuple(kind for kind in reply_types(self.operation) if kind is not NoneType)


@dataclass
class ApiEndpoints:
    bus: Bus
    dispatcher: Dispatcher
    by_title: dict[str, Endpoint] = field(default_factory=dict[str, Endpoint])
    router: NatsRouter = field(init=False)

    def __post_init__(self) -> None:
        failures = RequestFailures(
            self.bus, frozenset(one.name for one in self.dispatcher.operations if one.confidential)
        )
        replies = partial(_Replies, bus=self.bus, failures=failures, services=self.dispatcher.services)
        self.router = NatsRouter(middlewares=(replies,))
        for operation in self.dispatcher.operations:
            if not operation.not_over_nats:
                self._serve(operation)

    def _serve(self, operation: Operation) -> None:
        endpoint = Endpoint(operation)
        self.by_title[endpoint.title] = endpoint
        tokens = (*operation.name.split("."), *(ANY for _ in endpoint.parameters[1:]))
        subscriber = self.router.subscriber(subjects.api(ANY, *tokens), queue=QUEUE)
        subscriber(_handler(endpoint, self.dispatcher))


def _handler(endpoint: Endpoint, dispatcher: Dispatcher) -> Callable[..., Awaitable[BaseModel | None]]:
    operation, body, deletes = endpoint.operation, endpoint.body, endpoint.deletes

    async def respond(request: BaseModel | None, message: Message) -> BaseModel | None:
        # The broker has checked the tenant in the subject; the user is unknown.
        caller = Caller(message.subject.split(".")[1], USER, interface="nats")
        if operation.frame is not None and request is not None:
            return await dispatcher.handle(caller, request)
        path = {} if operation.named is None else {operation.named: message.subject.rpartition(".")[2]}
        arguments = {
            **arguments_of(operation, request),
            **{name: path_value(operation, value) for name, value in path.items()},
            **{name: message for name, kind in parameters_of(operation).others if kind is Received},
        }
        request_id = message.headers.get(REQUEST_ID)
        call_id = request_id or unrepeated_id()
        reply: BaseModel | None = await dispatcher.call(operation, caller, call_id, arguments)
        if deletes:
            named = operation.path_parameters
            # What a tenant has only one of has no id.
            reply = Deleted(id=str(arguments[named[-1]]) if named else caller.tenant)
        if reply is not None and operation.audit is not None:
            described = reply.model_dump(mode="json", by_alias=True)
            await dispatcher.record(operation, caller, "nats", path, described, request_id)
        return reply

    async def handle(request: Any, message: Any) -> BaseModel | None:
        return await respond(request, message)

    async def handle_without_body(message: Any) -> BaseModel | None:
        return await respond(None, message)

    handler = handle_without_body if body is None else handle
    handler.__name__ = handler.__qualname__ = operation.handler.__name__
    handler.__doc__ = operation.handler.__doc__
    # FastStream reads the type of the body from the annotations.
    handler.__annotations__ = {"message": Received} | ({} if body is None else {"request": body})
    return handler


class _Replies(BaseMiddleware[Any, Any]):
    """Encodes replies, and reports the failure of a request without a reply subject."""

    def __init__(
        self, msg: Any, /, *, context: ContextRepo, bus: Bus, failures: RequestFailures, services: ServiceMap
    ) -> None:
        super().__init__(msg, context=context)
        self._bus = bus
        self._failures = failures
        self._services = services

    async def consume_scope(
        self, call_next: Callable[[Any], Awaitable[Any]], msg: StreamMessage[Any]
    ) -> bytes | None:
        raw = msg.raw_message
        try:
            raw.data = await self._services[JsonIntake].admit(raw.subject.split(".")[1], raw.data)
            with traced(msg.headers.get(HEADER)):
                reply: BaseModel | None = await call_next(msg)
        except BanksmanError as error:
            if msg.reply_to:
                raise
            await self._failures.report(Message(raw.subject, raw.data, headers=raw.headers or {}), error)
            return None
        return None if reply is None else self._encoded(reply)

    def _encoded(self, reply: BaseModel) -> bytes:
        # With aliases and nulls, as over HTTP. Only acknowledgements omit unused fields.
        data = reply.model_dump_json(by_alias=True, exclude_none=isinstance(reply, Ack)).encode()
        if len(data) > self._bus.max_payload:
            return error_envelope(ReplyTooLarge(len(data), self._bus.max_payload))
        return data


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
        letters = subjects.all_of("dead", NATS_API)
        fits = len(request.data) <= MAX_LETTER_BYTES
        if not fits or await count_below(self.bus, DEAD, letters) >= MAX_LETTERS:
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


def _error_frame(request: Message, error: BanksmanError) -> bytes:
    """Return the error frame of a request: `reply_to` is its id, and the details name its subject."""
    frame = error_frame(error, request.headers.get(REQUEST_ID) or id_in(request.data))
    details = {**(frame.details or {}), "subject": request.subject}
    return frame.model_copy(update={"details": details}).model_dump_json(exclude_none=True).encode()
