"""The declaration of operations."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self, TypeVar, get_args

from pydantic import BaseModel

from banksman.contracts.errors import ErrorCode, Forbidden
from banksman.gateway.operation.caller import CHAT, PUBLIC, READ, Caller, Rights

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])

MISSING, CONFLICT, EARLY = ErrorCode.NOT_FOUND, ErrorCode.CONFLICT, ErrorCode.NOT_READY
FORBIDDEN = ErrorCode.FORBIDDEN
"""The errors that operations declare besides those that every request may get."""

_DONE = {
    "create": "created", "update": "changed", "delete": "deleted", "restore": "restored",
    "import": "imported", "set": "set", "revoke": "revoked", "discard": "discarded", "replay": "replayed",
}  # fmt: skip
"""What the audit trail calls the actions of operations."""
_PARAMETER = re.compile(r"\{(\w+)(?::path)?\}")


class BodyLimit(StrEnum):
    """How many bytes the body of a request may have over HTTP, and what becomes of them."""

    SMALL = "small"
    """JSON of at most 1 MiB."""
    LARGE = "large"
    """JSON of at most `max_body_bytes`, which like any JSON has at most 20,000 values."""
    FORWARDED = "forwarded"
    """At most `max_body_bytes`, which are forwarded without being parsed in the gateway's process."""
    FILE = "file"
    """A file of at most `max_upload_bytes`."""


@dataclass(frozen=True, slots=True)
class RequestRule:
    """What is checked of a request over HTTP before its operation is known."""

    method: str
    path: str
    """As in the route: `/context/conversations/{conversation_id}/runs`."""
    body: BodyLimit
    starts_work: bool = False


@dataclass(frozen=True, slots=True)
class Audit:
    """The entry of the audit trail that a successful operation leaves."""

    action: str
    """`key.created`."""
    details: tuple[str, ...] = ()
    """Fields of the reply that describe the change. They must not contain secrets."""

    @classmethod
    def of(cls, name: str, details: tuple[str, ...]) -> Self:
        """Return the entry of an operation by its name: `key.create` leaves `key.created`."""
        noun, _, verb = name.partition(".")
        return cls(f"{noun}.{_DONE[verb]}", details)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operation:
    name: str
    """`assistant.create`: the words of the NATS subject, and the name in the SDKs."""
    handler: Callable[..., Awaitable[Any]]
    """The function that does it; its docstring and types describe it in OpenAPI and AsyncAPI."""
    tag: str
    right: Rights
    """The caller needs one of these; empty for an operation that needs no key."""
    errors: tuple[ErrorCode, ...] = ()
    audit: Audit | None = None
    method: str = ""
    path: str = ""
    """Method and path over HTTP; empty with the reason in `not_over_http`."""
    status: int = 200
    """The HTTP status of success."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further arguments of the FastAPI route."""
    frame: type[BaseModel] | None = None
    """The frame of the websocket that requests the operation; None for none."""
    named: str | None = None
    """The parameter with which the NATS subject ends; None for none."""
    not_over_http: str = ""
    not_over_nats: str = ""
    """Why an interface does not have the operation; empty if it has."""
    confidential: bool = False
    """Whether the request may contain a secret, which reports of its failure must omit."""
    body: BodyLimit = BodyLimit.SMALL

    of_hidden: bool = False
    """Whether a caller may request it for a conversation that is hidden from them: it shows no content."""
    starts_work: bool = False
    """Whether it stores new work, which an overloaded system refuses before anything is done for it."""

    def check(self, caller: Caller) -> None:
        """Raise `Forbidden` if a caller may not request the operation."""
        if self.right != PUBLIC:
            caller.check("context")
            caller.need(*self.right)

    def opens_to(self, caller: Caller) -> bool:
        try:
            self.check(caller)
        except Forbidden:
            return False
        return True

    @property
    def by_name(self) -> bool:
        """Whether other protocols may request it by name: no frame has its arguments, and no HTTP request."""
        return self.frame is None and not (self.path and self.not_over_nats)

    @property
    def path_parameters(self) -> tuple[str, ...]:
        """The parameters of the path over HTTP, the outermost first."""
        return tuple(_PARAMETER.findall(self.path))

    @property
    def subject_parameter(self) -> str | None:
        """The parameter of the subject as documents name it: `{workflow}` for the `name` of a workflow."""
        return self.name.partition(".")[0] if self.named == "name" else self.named


class Operations:
    """The operations of a feature, in the order in which a path is looked up."""

    def __init__(self, tag: str, *, right: Rights | None = None) -> None:
        """Begin without operations.

        Args:
            tag: The group of the operations in OpenAPI.
            right: The right that the operations need, where they state no other. None stands for `READ` for a
                `GET` and `CHAT` for any other method.
        """
        self._tag = tag
        self._right = right
        self._declared: list[Operation] = []

    def __iter__(self) -> Iterator[Operation]:
        return iter(self._declared)

    def add(
        self,
        name: str,
        http: str,
        *,
        right: Rights | None = None,
        status: int | None = None,
        errors: tuple[ErrorCode, ...] | None = None,
        audit: Audit | tuple[str, ...] | None = None,
        not_over_nats: str = "",
        confidential: bool = False,
        body: BodyLimit = BodyLimit.SMALL,
        of_hidden: bool = False,
        starts_work: bool = False,
        **options: Any,
    ) -> Callable[[Handler], Handler]:
        """Declare the decorated function as an operation over HTTP and NATS.

        The NATS subject is `api.{tenant}.` with the name and the first parameter of the path. The body of a
        request over NATS has the fields of the HTTP body, and the other parameters of path and query.

        Args:
            name: `assistant.create`.
            http: Method and path.
            right: The right that the operation needs; None for the one of the feature.
            status: The HTTP status of success; None for 201 if the operation creates an object, 204 if the
                handler returns None, else 200.
            errors: The error codes that are particular to the operation; None for `MISSING` if its path has a
                parameter.
            audit: The entry in the audit trail, or only its details, where the name of the operation states
                the action; None for an operation that is not recorded there.
            not_over_nats: Why NATS has no such operation; empty if it has.
            confidential: True if the request may contain a secret.
            body: How many bytes the body may have; the default suffices for all but texts and files.
            of_hidden: True if a caller may request it for a conversation that is limited to others.
            starts_work: True if an overloaded system refuses the operation.
            options: Further arguments of the FastAPI route.
        """
        method, _, path = http.partition(" ")
        if isinstance(audit, tuple):
            audit = Audit.of(name, audit)
        if status is None and name.endswith((".create", ".import")):
            status = 201
        default = self._right or (READ if method == "GET" else CHAT)
        return self._declare(
            name=name,
            right=default if right is None else right,
            errors=errors,
            audit=audit,
            method=method,
            path=path,
            status=status,
            options=options,
            named=next(iter(_PARAMETER.findall(path)), None),
            not_over_nats=not_over_nats,
            confidential=confidential,
            body=body,
            of_hidden=of_hidden,
            starts_work=starts_work,
        )

    def over_nats(
        self,
        name: str,
        named: str | None = None,
        *,
        not_over_http: str,
        right: Rights = READ,
        errors: tuple[ErrorCode, ...] | None = None,
        audit: Audit | None = None,
        confidential: bool = False,
    ) -> Callable[[Handler], Handler]:
        """Declare the decorated function as an operation over NATS alone, and state why.

        The subject is `api.{tenant}.` with the name and the parameter `named`.
        """
        return self._declare(
            name=name,
            named=named,
            not_over_http=not_over_http,
            right=right,
            errors=errors,
            audit=audit,
            confidential=confidential,
        )

    def between_features(
        self, name: str, *, right: Rights, errors: tuple[ErrorCode, ...] = (), reason: str
    ) -> Callable[[Handler], Handler]:
        """Declare the decorated function as an operation that protocols such as A2A request by its name.

        With it, a protocol uses an optional feature without importing it. `reason` states why neither HTTP
        nor NATS has the operation.
        """
        return self._declare(
            name=name, right=right, errors=errors, not_over_http=reason, not_over_nats=reason
        )

    def on_frame(
        self,
        frame: type[BaseModel],
        named: str | None = None,
        *,
        right: Rights,
        errors: tuple[ErrorCode, ...] | None = None,
        starts_work: bool = False,
    ) -> Callable[[Handler], Handler]:
        """Declare the decorated function as the handler of a frame, over the websocket and NATS.

        The type of the frame is the name of the operation. Over NATS the subject ends with the field `named`.
        """
        return self._declare(
            name=get_args(frame.model_fields["type"].annotation)[0],
            right=right,
            errors=errors,
            frame=frame,
            named=named,
            starts_work=starts_work,
            not_over_http="declared beside it, with the reply that HTTP clients expect",
        )

    def _declare(
        self,
        *,
        named: str | None = None,
        status: int | None = None,
        errors: tuple[ErrorCode, ...] | None = None,
        **fields: Any,
    ) -> Callable[[Handler], Handler]:
        if errors is None:
            errors = (MISSING,) if named else ()

        def declare(handler: Handler) -> Handler:
            returns_nothing = handler.__annotations__.get("return", "") in (None, "None")
            success = status or (204 if returns_nothing else 200)
            operation = Operation(
                handler=handler, tag=self._tag, named=named, status=success, errors=errors, **fields
            )
            self._declared.append(operation)
            return handler

        return declare
