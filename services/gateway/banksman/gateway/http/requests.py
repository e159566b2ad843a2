"""How endpoints read what they are asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel

from banksman.contracts.ids import new_id
from banksman.contracts.wire import parse
from banksman.gateway.service.auth import Caller, Keys, bearer

M = TypeVar("M", bound=BaseModel)

CallerOf = Callable[[Request], Awaitable[Caller]]


def context_caller(keys: Keys) -> CallerOf:
    """A dependency: who calls an endpoint of the context mode."""

    async def caller(request: Request) -> Caller:
        found = keys.caller(bearer(request.headers.get("authorization")))
        found.check("context")
        return found

    return caller


async def body(request: Request, model: type[M]) -> M:
    """The request's JSON body; an empty one counts as `{}`.

    Raises:
        BadInput: naming the first field that is wrong.
    """
    return parse(model, await request.body() or b"{}")


def request_id(request: Request) -> str:
    """The request's `Idempotency-Key`, or an id of its own."""
    return request.headers.get("idempotency-key", "")[:128] or new_id("http-")


def takes(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    """What the API document says of a body, which endpoints read themselves."""
    reference = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": reference}}}}
