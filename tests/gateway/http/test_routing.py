"""Routes are built on first use, once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Annotated, Any

from fastapi import Body
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.gateway.asgi.routing import LazyRoute, LazyRouter

BUILDING, REQUESTED = Event(), Event()


class Held:
    """A type whose validator is built when the route is requested by another thread."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        BUILDING.set()
        assert REQUESTED.wait(WAIT_TIMEOUT_S)
        return core_schema.any_schema()


async def endpoint(body: Annotated[Held, Body()]) -> None:
    """Do nothing."""


def test_request_waits_for_the_thread_that_builds_its_route() -> None:
    """The OpenAPI document is made in a thread, and builds all routes."""
    router = LazyRouter()
    router.add_api_route("/held", endpoint, methods=["POST"])
    [route] = router.routes
    assert isinstance(route, LazyRoute)

    def requested() -> Any:
        assert BUILDING.wait(WAIT_TIMEOUT_S)
        REQUESTED.set()
        return route.app

    with ThreadPoolExecutor(2) as threads:
        body = threads.submit(lambda: route.body_field)
        app = threads.submit(requested)

        assert body.result(WAIT_TIMEOUT_S) is not None
        assert app.result(WAIT_TIMEOUT_S) is route.app
