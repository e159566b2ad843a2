"""The parameters of an operation's function, which are FastAPI's: body, path, query, and dependencies.

`CallerDep`, `RequestId` and `provided(…)` are dependencies of FastAPI. Other interfaces find them in the
signature, and pass the values themselves.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Final, Generic, TypeVar, cast, get_args, get_origin, get_type_hints

from fastapi import Body, Depends, Header, Request
from fastapi.params import Depends as DependsMarker
from fastapi.security import HTTPBearer
from pydantic import BaseModel, GetCoreSchemaHandler, TypeAdapter, ValidationError, create_model
from pydantic.warnings import UnsupportedFieldAttributeWarning
from pydantic_core import CoreSchema, core_schema

from banksman.contracts.errors import BadInput, Unavailable
from banksman.contracts.ids import new_id
from banksman.contracts.validation_errors import expected
from banksman.contracts.wire import Stored, Wire, parse
from banksman.gateway.operation.caller import Caller
from banksman.gateway.operation.declaration import Operation

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

NOT_CONNECTED = "the gateway is connecting to NATS"
CHECKED: Final = "banksman.checked"
"""Key of a request's body in its scope, after the number of its values was checked."""
MAX_POSITION: Final = 2**63 - 2
"""Maximum position in a stream after which a page may begin."""
UNREPEATED: Final = new_id("own-")
"""Prefix of the ids that this process gives to requests without an id. Clients cannot guess it."""

BEARER = HTTPBearer(
    scheme_name="bearer", description="An API key. A gateway in keyless mode needs none.", auto_error=False
)
"""Only describes the key in OpenAPI."""


class ServiceMap:
    """The services of a gateway by type. Features add theirs while the gateway is composed."""

    def __init__(self) -> None:
        self._by_type: dict[type[Any], Any] = {}

    def add(self, *services: object) -> None:
        self._by_type.update({type(service): service for service in services})

    def provide(self, kind: type[T], service: T) -> None:
        self._by_type[kind] = service

    def __getitem__(self, kind: type[T]) -> T:
        return cast(T, self._by_type[kind])

    def find(self, kind: type[T]) -> T | None:
        """Return a service; None if no feature provides it, or before NATS is connected."""
        return cast(T | None, self._by_type.get(kind))

    def connected(self, kind: type[T]) -> T:
        """Return a service; raise `Unavailable` if the gateway has not connected to NATS yet."""
        if not self.has(kind):
            raise Unavailable(NOT_CONNECTED)
        return self[kind]

    def has(self, kind: type[Any]) -> bool:
        return kind in self._by_type


@dataclass(frozen=True, slots=True)
class Provided(Generic[T]):
    kind: type[T]

    async def __call__(self, request: Request) -> T:
        services: ServiceMap = request.app.state.services
        return services.connected(self.kind)


def provided(kind: type[Any]) -> Any:
    return Depends(Provided(kind))


async def current_caller(request: Request) -> Caller:
    """Return the caller of a request over HTTP, whose right was checked before its body was read."""
    return request.state.caller


async def request_id(
    idempotency_key: Annotated[
        str,
        Header(
            alias="Idempotency-Key",
            description="Identifies the request for 24 hours: a repeat returns the first result.",
        ),
    ] = "",
) -> str:
    """Return the first 128 characters of the `Idempotency-Key` header; a new id without it."""
    return idempotency_key[:128] or unrepeated_id()


def unrepeated_id() -> str:
    """Return an id for a request without one, which no client can repeat."""
    return new_id(f"{UNREPEATED}-")


def creation_id(request_id: str) -> str:
    """Return the id of the request that creates a conversation for another request, stable across repeats."""
    return f"{request_id}:conversation"[-128:]


CallerDep = Annotated[Caller, Depends(current_caller)]
RequestId = Annotated[str, Depends(request_id)]


class StrictJson:
    """Annotation of a body, whose bytes are validated strictly.

    FastAPI accepts a duplicate key, `NaN`, and `"5"` for a number, and refuses a body whose content type is
    not JSON. Here the first three are errors, as on the websocket, and the content type is optional.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def validate(value: Any, _: core_schema.ValidatorFunctionWrapHandler) -> BaseModel:
            return value if isinstance(value, source) else parse(source, value)

        return core_schema.no_info_wrap_validator_function(validate, handler(source))


# FastAPI gives bodies an alias, of which pydantic warns that it has no effect. FastAPI silences that while it
# creates a route, and our models build their validators later, on first use.
warnings.filterwarnings("ignore", category=UnsupportedFieldAttributeWarning)
StrictBody = Annotated[M, StrictJson(), Body()]


class RequestBody(Wire):
    """The body of a request."""


class Listing(Stored, Generic[T]):
    """A list in one page."""

    items: tuple[T, ...]
    next: None = None


@dataclass(frozen=True, slots=True)
class RequestParameters:
    """The parameters of an operation's function, by the source of their values."""

    services: Mapping[str, type[Any]]
    caller: str | None
    request_id: str | None
    body: str | None
    body_model: type[BaseModel] | None
    fields: Mapping[str, tuple[Any, Any]] = field(default_factory=dict[str, tuple[Any, Any]])
    """Type and default value (`...` for none) of each parameter of path and query."""
    others: tuple[tuple[str, Any], ...] = ()
    """Name and annotation of parameters that only one interface provides, such as FastAPI's `Request`."""


@cache
def parameters_of(operation: Operation) -> RequestParameters:
    hints = get_type_hints(operation.handler, include_extras=True)
    services: dict[str, type[Any]] = {}
    fields: dict[str, tuple[Any, Any]] = {}
    named: dict[str, str] = {}
    body_model: type[BaseModel] | None = None
    others: list[tuple[str, Any]] = []
    for name, parameter in inspect.signature(operation.handler).parameters.items():
        annotation = hints[name]
        first = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
        dependency = _dependency(annotation)
        if isinstance(dependency, Provided):
            services[name] = cast(Provided[Any], dependency).kind
            continue
        match dependency:
            case call if call is current_caller:
                named["caller"] = name
            case call if call is request_id:
                named["request_id"] = name
            case None if _is_body(annotation, first):
                named["body"], body_model = name, first
            case None if _is_field(first):
                default = ... if parameter.default is inspect.Parameter.empty else parameter.default
                fields[name] = annotation, default
            case _:
                others.append((name, annotation))
    return RequestParameters(
        services=services,
        caller=named.get("caller"),
        request_id=named.get("request_id"),
        body=named.get("body"),
        body_model=body_model,
        fields=fields,
        others=tuple(others),
    )


@cache
def reply_types(operation: Operation) -> tuple[type[Any], ...]:
    returned = get_type_hints(operation.handler)["return"]
    return get_args(returned) or (returned,)


def _dependency(annotation: Any) -> Any:
    markers = [one for one in getattr(annotation, "__metadata__", ()) if isinstance(one, DependsMarker)]
    return markers[0].dependency if markers else None


def _is_body(annotation: Any, first: Any) -> bool:
    extras: tuple[Any, ...] = getattr(annotation, "__metadata__", ())
    return any(isinstance(one, StrictJson) for one in extras) or (
        isinstance(first, type) and issubclass(first, BaseModel)
    )


def _is_field(first: Any) -> bool:
    return not (
        isinstance(first, type) and first.__module__.startswith(("starlette.", "fastapi.", "banksman.bus."))
    )


@cache
def request_model(operation: Operation) -> type[BaseModel] | None:
    """Return the model of a request whose parameters are fields of one object; None if it has no field.

    The parameter that the subject of a request over NATS names is no field.
    """
    parameters = parameters_of(operation)
    fields = {name: kind for name, kind in parameters.fields.items() if name != operation.named}
    if not fields:
        return parameters.body_model
    name = "".join(word.capitalize() for word in operation.handler.__name__.split("_"))
    base = parameters.body_model or Wire
    return create_model(name, __base__=base, __doc__=operation.handler.__doc__, **cast(Any, fields))


def arguments_of(operation: Operation, request: BaseModel | None) -> dict[str, Any]:
    """Return the arguments of the operation's function that a request of `request_model` contains."""
    parameters = parameters_of(operation)
    found = {name: getattr(request, name) for name in parameters.fields if name != operation.named}
    if parameters.body is not None and parameters.body_model is not None:
        body = parameters.body_model
        values = {name: getattr(request, name) for name in body.model_fields}
        found[parameters.body] = request if type(request) is body else body.model_construct(**values)
    return found


@cache
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)


def path_value(operation: Operation, text: str) -> Any:
    """Return the parameter that the subject of a NATS request names; raise `BadInput` for another type."""
    assert operation.named is not None
    annotation, _ = parameters_of(operation).fields[operation.named]
    try:
        return _adapter(annotation).validate_strings(text)
    except ValidationError as error:
        raise BadInput(operation.named, text, expected(error.errors()[0])) from error
