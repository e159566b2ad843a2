"""Routes are built on first use, once for all users."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Annotated, Any

import pytest
from fastapi import Body
from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema
from tests.support.timeouts import WAIT_TIMEOUT_S

from banksman.gateway.service.routing import LazyRoute, LazyRouter

BUILDING, REQUESTED = Event(), Event()


class Held:
    """A type whose first validator is built when another thread has used the route."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        if not BUILDING.is_set():
            BUILDING.set()
            assert REQUESTED.wait(WAIT_TIMEOUT_S)
        return core_schema.any_schema()


class FailsOnce:
    """A type whose first validator cannot be built."""

    failed = False

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        if not cls.failed:
            cls.failed = True
            raise MemoryError("no room for a validator")
        return core_schema.any_schema()


async def with_held(body: Annotated[Held, Body()]) -> None:
    """Do nothing."""


async def failing_once(body: Annotated[FailsOnce, Body()]) -> None:
    """Do nothing."""


def route_of(endpoint: Callable[..., Any]) -> LazyRoute:
    router = LazyRouter()
    router.add_api_route("/route", endpoint, methods=["POST"])
    [route] = router.routes
    assert isinstance(route, LazyRoute)
    return route


def test_request_does_not_wait_for_the_thread_that_builds_its_route() -> None:
    """The OpenAPI document is made in a thread, and builds all routes; the event loop continues."""
    route = route_of(with_held)

    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(lambda: route.app)
        assert BUILDING.wait(WAIT_TIMEOUT_S)
        body = route.body_field
        REQUESTED.set()

        assert body is not None
        assert other.result(WAIT_TIMEOUT_S) is route.app


def test_route_whose_build_failed_is_built_at_its_next_use() -> None:
    route = route_of(failing_once)

    with pytest.raises(MemoryError):
        _ = route.app

    assert route.app is not None
    with pytest.raises(AttributeError):
        _ = route.unknown
