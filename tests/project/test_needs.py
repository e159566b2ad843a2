"""Each test is marked by what it needs."""

from __future__ import annotations

import asyncio
import subprocess

import pytest

from tests.support.nats import NatsServer, broker
from tests.support.needs import ORDER, need_of_function
from tests.support.system import System


def computes() -> int:
    return sum(range(3))


def starts_a_broker() -> NatsServer:
    return NatsServer()


def reaches_a_broker() -> object:
    return [broker() for _ in range(1)]


def starts_a_process() -> None:
    subprocess.run(["true"], check=True)


async def starts_a_process_in_a_loop() -> None:
    await asyncio.create_subprocess_exec("true")


def reaches_a_system() -> type[System]:
    def nested() -> type[System]:
        return System

    return nested()


@pytest.mark.parametrize(
    ("function", "need"),
    [
        (computes, "unit"),
        (starts_a_broker, "broker"),
        (reaches_a_broker, "broker"),
        (starts_a_process, "system"),
        (starts_a_process_in_a_loop, "system"),
        (reaches_a_system, "system"),
    ],
)
def test_need_is_read_from_the_helpers_that_a_function_reaches(function: object, need: str) -> None:
    assert need_of_function(function) == need


def test_every_test_has_one_mark_of_its_need(request: pytest.FixtureRequest) -> None:
    marked = [[need for need in ORDER if item.get_closest_marker(need)] for item in request.session.items]

    assert {len(needs) for needs in marked} == {1}
