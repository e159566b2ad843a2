"""The handlers of `api.{tenant}.>` by subject, with their descriptions for documents."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from faststream import BaseMiddleware, ContextRepo, StreamMessage
from faststream.nats import NatsRouter
from faststream.nats.subscriber.usecases import LogicSubscriber
from pydantic import BaseModel

from banksman.bus.connection import Bus
from banksman.bus.errors import error_envelope
from banksman.bus.messages import Message
from banksman.contracts import subjects
from banksman.contracts.errors import BanksmanError, ErrorCode
from banksman.contracts.frames import Ack
from banksman.contracts.ids import new_id
from banksman.contracts.nats_api import REQUEST_ID
from banksman.contracts.subjects import ANY
from banksman.gateway.nats_api.failures import Failures
from banksman.gateway.service.auth import Caller
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

_PARAMETER = re.compile(r"\{(\w+)\}")


class ReplyTooLarge(BanksmanError):
    """A reply does not fit one message."""

    code = ErrorCode.TOO_LARGE

    def __init__(self, size: int, max_bytes: int) -> None:
        self.size = size
        self.max_bytes = max_bytes
        super().__init__(
            f"the reply has {size} bytes, more than {max_bytes}; request less, for example by `limit`"
        )


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One subject of the API."""

    tokens: tuple[str, ...]
    """The tokens after `api.{tenant}`; one in braces is a parameter."""
    errors: tuple[ErrorCode, ...]
    """The errors of its requests in addition to `COMMON_ERRORS`."""

    @property
    def address(self) -> str:
        """The subject with its parameters: `api.{tenant}.chat.send.{conversation_id}`."""
        return ".".join(("api", "{tenant}", *self.tokens))

    @property
    def parameters(self) -> tuple[str, ...]:
        """The parameters of the subject."""
        return tuple(_PARAMETER.findall(self.address))

    @property
    def title(self) -> str:
        """The tokens of the subject that are no parameters, separated by spaces."""
        return " ".join(token for token in self.tokens if not _PARAMETER.fullmatch(token))


@dataclass
class Endpoints:
    """The handlers of the API."""

    bus: Bus
    recorded: Callable[[Message, BaseModel], Awaitable[None]]
    """Called with each successful request and its reply, to store those that the audit trail records."""
    by_title: dict[str, Endpoint] = field(default_factory=dict[str, Endpoint])
    router: NatsRouter = field(init=False)

    def __post_init__(self) -> None:
        failures = Failures(self.bus)

        def replies(msg: Any, /, *, context: ContextRepo) -> _Replies:
            return _Replies(msg, context=context, endpoints=self, failures=failures)

        self.router = NatsRouter(middlewares=(replies,))

    def serve(self, *tokens: str, errors: tuple[ErrorCode, ...] = ()) -> LogicSubscriber[Any]:
        """Return the decorator of the handler of `api.{tenant}.{tokens}`."""
        endpoint = Endpoint(tokens, errors)
        self.by_title[endpoint.title] = endpoint
        subject = (ANY if _PARAMETER.fullmatch(token) else token for token in tokens)
        return self.router.subscriber(subjects.api(ANY, *subject), queue=QUEUE, title=endpoint.title)


class _Replies(BaseMiddleware[Any, Any]):
    """Encodes replies, and reports the failure of a request without a reply subject."""

    def __init__(
        self, msg: Any, /, *, context: ContextRepo, endpoints: Endpoints, failures: Failures
    ) -> None:
        super().__init__(msg, context=context)
        self._bus = endpoints.bus
        self._recorded = endpoints.recorded
        self._failures = failures

    async def consume_scope(
        self, call_next: Callable[[Any], Awaitable[Any]], msg: StreamMessage[Any]
    ) -> bytes | None:
        raw = msg.raw_message
        try:
            with traced(msg.headers.get(HEADER)):
                reply: BaseModel | None = await call_next(msg)
                if reply is not None:
                    await self._recorded(Message(raw.subject, b"", headers=raw.headers or {}), reply)
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


def caller_of(message: Message) -> Caller:
    """Return the caller. The tenant is in the subject, which the broker has checked; the user is unknown."""
    return Caller(tenant_of(message), USER)


def tenant_of(message: Message) -> str:
    """Return the tenant of a request."""
    return message.subject.split(".")[1]


def named_by(message: Message) -> str:
    """Return the last token of a request's subject, its parameter."""
    return message.subject.rpartition(".")[2]


def request_id_of(message: Message) -> str:
    """Return the idempotency key of a request; a new id without it."""
    return message.headers.get(REQUEST_ID) or new_id("nats-")
