"""Executes operations: checks the right, calls the function, and records the action in the audit trail."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from pydantic import BaseModel

from banksman.contracts.administration import AuditInterface
from banksman.contracts.errors import NotFound, Unavailable
from banksman.contracts.ids import conversation_of_approval
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.declaration import Audit, Operation
from banksman.gateway.operation.parameters import (
    NOT_CONNECTED,
    ServiceMap,
    parameters_of,
    reply_types,
    unrepeated_id,
)

KINDS: Final[Mapping[str, str]] = {
    "conversation_id": "conversation",
    "run_id": "run",
    "approval_id": "approval",
    "request_id": "input request",
}
"""What an argument names that belongs to a conversation, by the argument's name."""


class Visibility(Protocol):
    def hides(self, caller: Caller, conversation_id: str) -> bool:
        """Return whether a caller may not know of a conversation."""
        ...


class Named(NamedTuple):
    kind: str
    id: str
    conversation_id: str


def named_in(arguments: Mapping[str, Any]) -> Iterator[Named]:
    """Yield what the arguments name that belongs to a conversation; bodies are searched with their parts."""
    for name, value in arguments.items():
        if isinstance(value, BaseModel):
            # Not `dict`: a body may have a field `keys`.
            yield from named_in(vars(value))
        elif isinstance(value, str) and name in KINDS:
            yield Named(KINDS[name], value, _conversation(name, value))


def check_visible(visibility: Visibility | None, caller: Caller, arguments: Mapping[str, Any]) -> None:
    """Raise `NotFound` for what the arguments name, if it belongs to a hidden conversation.

    The error is the one for an id that does not exist. Without a `visibility`, none may be seen yet.
    """
    for one in named_in(arguments):
        if visibility is None:
            raise Unavailable(NOT_CONNECTED)
        if visibility.hides(caller, one.conversation_id):
            raise NotFound(one.kind, one.id)


def _conversation(name: str, value: str) -> str:
    match name:
        case "conversation_id":
            return value
        case "run_id":
            return value.rpartition("-")[0]
        case _:
            return conversation_of_approval(value) or ""


class AuditTrail(Protocol):
    async def record(
        self,
        caller: Caller,
        action: Audit,
        interface: AuditInterface,
        *,
        tenant: str,
        target: str,
        reply: Mapping[str, Any],
        request_id: str | None = None,
    ) -> None:
        """Store the entry of a successful request; a repeat with the same request id stores none."""
        ...


class LoadLimit(Protocol):
    async def check_load(self, tenant: str) -> None:
        """Raise `Overloaded` if new work of a tenant could not start now."""
        ...

    def one_start(self, tenant: str) -> AbstractAsyncContextManager[None]:
        """Return a context for all that one start stores; it raises `Overloaded` before anything is."""
        ...


@dataclass
class Dispatcher:
    operations: tuple[Operation, ...]
    services: ServiceMap
    trail: AuditTrail | None = None
    """Set once the gateway is connected to NATS."""
    admission: LoadLimit | None = None
    """Set once the gateway is connected to NATS."""
    visibility: Visibility | None = None
    """Set once the gateway is connected to NATS. Until then no conversation may be named."""
    _frames: dict[type[BaseModel], Operation] = field(init=False)
    _named: dict[str, Operation] = field(init=False)

    def __post_init__(self) -> None:
        self.services.add(self)
        self._frames = {one.frame: one for one in self.operations if one.frame is not None}
        self._named = {one.name: one for one in self.operations if one.by_name}

    def check_complete(self) -> None:
        """Raise `LookupError` if an operation needs a service that no feature has built."""
        for operation in self.operations:
            for kind in parameters_of(operation).services.values():
                if not self.services.has(kind):
                    raise LookupError(f"{operation.name} needs {kind.__name__}, which no feature builds")

    async def handle(self, caller: Caller, frame: BaseModel, **known: Any) -> Any:
        """Handle a client's frame, and return its acknowledgement.

        `known` are arguments of the handling function that no client sends, such as derived ids.

        Raises:
            CallerMistake: The frame is invalid, or the caller may not send it.
            Refused: The request may succeed later.
        """
        operation = self._frames[type(frame)]
        await self.admit(operation, caller)
        parameter = parameters_of(operation).body or ""
        self.check_visible(operation, caller, {parameter: frame})
        context = self._context(operation, caller, "") | {parameter: frame} | known
        return await operation.handler(**context)

    async def admit(self, operation: Operation, caller: Caller) -> None:
        """Check the caller's right, and that the system has room for new work; raises as `handle`."""
        operation.check(caller)
        if operation.starts_work:
            await self.check_load(caller.tenant)

    async def check_load(self, tenant: str) -> None:
        """Raise `Overloaded` if new work of a tenant could not start now."""
        if self.admission is not None:
            await self.admission.check_load(tenant)

    def one_start(self, caller: Caller) -> AbstractAsyncContextManager[None]:
        """Return a context for the frames of one start: a new conversation, and its first message.

        It raises `Refused` before anything is stored.
        """
        return nullcontext() if self.admission is None else self.admission.one_start(caller.tenant)

    def check_visible(self, operation: Operation, caller: Caller, arguments: Mapping[str, Any]) -> None:
        """Raise `NotFound` if the arguments name a hidden conversation, or what belongs to one.

        All interfaces check this before the function is called and, because it may wait, before they reply.
        """
        if not operation.of_hidden:
            check_visible(self.visibility, caller, arguments)

    async def request(self, name: str, caller: Caller, /, **arguments: Any) -> Any:
        """Perform the operation with a name, for a protocol that has its own formats; raises as `handle`.

        Operations that only HTTP has cannot be requested by name. `arguments` are those of the function,
        already valid; the dispatcher adds services and caller.
        """
        return await self.call(self._named[name], caller, unrepeated_id(), arguments)

    def has(self, name: str) -> bool:
        return name in self._named

    def allows(self, caller: Caller, operation: str | type[BaseModel]) -> bool:
        found = self._named[operation] if isinstance(operation, str) else self._frames[operation]
        return found.opens_to(caller)

    async def call(
        self, operation: Operation, caller: Caller, request_id: str, arguments: Mapping[str, Any]
    ) -> Any:
        """Call the function of an operation with the arguments of a request; raises as `handle`.

        The reply has the fields of its declared type alone, as over HTTP: a function may return the stored
        object, whose other fields are secret.
        """
        await self.admit(operation, caller)
        self.check_visible(operation, caller, arguments)
        reply = await operation.handler(**arguments, **self._context(operation, caller, request_id))
        self.check_visible(operation, caller, arguments)
        return _as_declared(reply, reply_types(operation))

    async def record(
        self,
        operation: Operation,
        caller: Caller,
        interface: AuditInterface,
        parameters: Mapping[str, str],
        reply: Mapping[str, Any],
        request_id: str | None,
    ) -> None:
        """Record a successful operation, if the audit trail has its action.

        Args:
            operation: The operation.
            caller: Who requested it.
            interface: The interface of the request.
            parameters: The parameters of path or subject, and the query parameter `tenant`. The first of the
                others names the target; `tenant` names another tenant than the caller's.
            reply: The reply, whose id is the target of a request without parameters.
            request_id: The idempotency key of the request; None without one.
        """
        if operation.audit is None or self.trail is None:
            return
        named = {name: value for name, value in parameters.items() if name != "tenant"}
        created = reply.get("id") or reply.get("name") or reply.get("conversation_id") or ""
        await self.trail.record(
            caller,
            operation.audit,
            interface,
            tenant=parameters.get("tenant") or caller.tenant,
            target=next(iter(named.values()), None) or str(created),
            reply=reply,
            request_id=request_id,
        )

    def _context(self, operation: Operation, caller: Caller, request_id: str) -> dict[str, Any]:
        parameters = parameters_of(operation)
        context: dict[str, Any] = {
            name: self.services.connected(kind) for name, kind in parameters.services.items()
        }
        if parameters.caller is not None:
            context[parameters.caller] = caller
        if parameters.request_id is not None:
            context[parameters.request_id] = request_id
        return context


def unique(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    """Return the operations; raise `ValueError` if two have the same name on one interface."""
    found = tuple(operations)
    for interface, named in (
        ("HTTP", [one.name for one in found if one.path]),
        ("NATS", [one.name for one in found if not one.not_over_nats]),
        ("other protocols", [one.name for one in found if one.by_name]),
    ):
        if twice := {name for name in named if named.count(name) > 1}:
            raise ValueError(f"operations with the same name over {interface}: {', '.join(sorted(twice))}")
    return found


def _as_declared(reply: Any, kinds: tuple[type[Any], ...]) -> Any:
    if not isinstance(reply, BaseModel) or type(reply) in kinds:
        return reply
    kind = next(kind for kind in kinds if isinstance(reply, kind))
    return kind.model_construct(**{name: getattr(reply, name) for name in kind.model_fields})
