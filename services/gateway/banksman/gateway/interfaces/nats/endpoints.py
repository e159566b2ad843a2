"""Makes FastStream endpoints on `api.{tenant}.>` from operations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from types import NoneType
from typing import Any, get_type_hints

from faststream import BaseMiddleware, ContextRepo, StreamMessage
from faststream.nats import NatsRouter
from pydantic import BaseModel

from banksman.bus.connection import Bus
from banksman.bus.control_plane.control import Received
from banksman.bus.errors import error_envelope
from banksman.bus.messages import Message
from banksman.contracts import subjects
from banksman.contracts.errors import BanksmanError, ErrorCode
from banksman.contracts.frames import REQUEST_ID, Ack
from banksman.contracts.subjects import ANY
from banksman.contracts.wire import Stored
from banksman.gateway.interfaces.nats.requests import RequestFailures
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.declaration import Operation
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.operation.parameters import (
    arguments_of,
    parameters_of,
    path_value,
    request_model,
    unrepeated_id,
)
from banksman.runtime.tracing import HEADER, traced

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
    ErrorCode.INTERNAL,
)
"""The errors of every request."""


class ReplyTooLarge(BanksmanError):
    code = ErrorCode.TOO_LARGE

    def __init__(self, size: int, max_bytes: int) -> None:
        self.size = size
        self.max_bytes = max_bytes
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
        self.router = NatsRouter(middlewares=(partial(_Replies, bus=self.bus, failures=failures),))
        for operation in self.dispatcher.operations:
            if not operation.not_over_nats:
                self._serve(operation)

    def _serve(self, operation: Operation) -> None:
        endpoint = Endpoint(operation)
        self.by_title[endpoint.title] = endpoint
        tokens = (*operation.name.split("."), *(ANY for _ in endpoint.parameters[1:]))
        subscriber = self.router.subscriber(subjects.api(ANY, *tokens), queue=QUEUE, title=endpoint.title)
        subscriber(_handler(operation, self.dispatcher))


def _handler(operation: Operation, dispatcher: Dispatcher) -> Callable[..., Awaitable[BaseModel | None]]:
    body = operation.frame or request_model(operation)
    returned = get_type_hints(operation.handler)["return"]
    deletes = returned is NoneType and not operation.not_over_http

    async def respond(request: BaseModel | None, message: Message) -> BaseModel | None:
        # The broker has checked the tenant in the subject; the user is unknown.
        caller = Caller(message.subject.split(".")[1], USER)
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
            reply = Deleted(id=str(arguments[operation.path_parameters[-1]]))
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
    # FastStream reads the types of body and reply from the annotations.
    handler.__annotations__ = {"message": Received, "return": Deleted if deletes else returned}
    if body is not None:
        handler.__annotations__["request"] = body
    return handler


class _Replies(BaseMiddleware[Any, Any]):
    """Encodes replies, and reports the failure of a request without a reply subject."""

    def __init__(self, msg: Any, /, *, context: ContextRepo, bus: Bus, failures: RequestFailures) -> None:
        super().__init__(msg, context=context)
        self._bus = bus
        self._failures = failures

    async def consume_scope(
        self, call_next: Callable[[Any], Awaitable[Any]], msg: StreamMessage[Any]
    ) -> bytes | None:
        raw = msg.raw_message
        try:
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
