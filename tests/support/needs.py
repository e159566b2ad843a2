"""Marks each test with what it needs, derived from its fixtures and from the helpers that they call.

unit     this process alone
broker   a nats-server
system   other processes: services, sandboxes, containers, a browser, a command line
faults   brokers or processes that are killed, frozen, disconnected or filled up (tests below tests/faults)
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Literal, cast

import pytest

from tests.support.nats import NatsCluster, NatsServer
from tests.support.paths import ROOT

Need = Literal["unit", "broker", "system", "faults"]
ORDER: tuple[Need, ...] = ("unit", "broker", "system", "faults")

BROKERS = (NatsServer, NatsCluster)
PROCESS_NAMES = frozenset(
    {"subprocess", "create_subprocess_exec", "BwrapSandbox", "DockerSandbox", "async_playwright"}
)
"""Names of calls that start a process."""
TESTS = f"{ROOT / 'tests'}/"
FAULTS_FIXTURE = "fault_injection"


def mark(item: pytest.Item) -> None:
    """Add the marker of the test's need."""
    item.add_marker(need_of(item))


def need_of(item: pytest.Item) -> Need:
    """Return the strongest need of a test, its fixtures, and the helpers in `tests` that they name."""
    functions = [getattr(item, "function", None), *_fixture_functions(item)]
    needs = [need_of_function(function) for function in functions if function is not None]
    strongest = ORDER[max(map(ORDER.index, needs), default=0)]
    injects_faults = FAULTS_FIXTURE in getattr(item, "fixturenames", ())
    return "faults" if injects_faults and strongest != "unit" else strongest


def _fixture_functions(item: pytest.Item) -> Iterator[Callable[..., object]]:
    # pytest offers no public access to the fixtures that a test resolves to.
    info = getattr(item, "_fixtureinfo", None)
    for definitions in info.name2fixturedefs.values() if info is not None else ():
        yield definitions[-1].func


@cache
def need_of_function(thing: object) -> Need:
    found: Need = "unit"
    seen: set[object] = set()
    ahead = [thing]
    while ahead:
        current = ahead.pop()
        if current in seen:
            continue
        seen.add(current)
        need, helpers = _own_need(current)
        if need == "system":
            return need
        found = ORDER[max(ORDER.index(found), ORDER.index(need))]
        ahead += helpers
    return found


@cache
def _own_need(thing: object) -> tuple[Need, tuple[object, ...]]:
    """Return the need of a helper's own code, and the helpers that this code names."""
    if thing in BROKERS:
        return "broker", ()
    helpers: list[object] = []
    for function in _functions(thing):
        names = frozenset(_names(function.__code__))
        if names & PROCESS_NAMES:
            return "system", ()
        helpers += [value for name in names if _is_helper(value := function.__globals__.get(name))]
    return "unit", tuple(helpers)


def _functions(thing: object) -> Iterator[FunctionType]:
    """Yield the functions of a helper: itself, or the methods of a class and of its bases in `tests`."""
    if inspect.isclass(thing):
        for base in thing.__mro__:
            if _is_ours(base):
                for value in vars(base).values():
                    yield from _unwrapped(value)
    else:
        yield from _unwrapped(thing)


def _unwrapped(value: object) -> Iterator[FunctionType]:
    match value:
        case property():
            yield from _unwrapped(value.fget)
        case staticmethod() | classmethod():
            yield from _unwrapped(cast("Callable[..., object]", value.__func__))
        case _ if callable(value) and isinstance(function := inspect.unwrap(value), FunctionType):
            yield function
        case _:
            return


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _is_helper(value: object) -> bool:
    return not isinstance(value, ModuleType) and callable(value) and _is_ours(value)


def _is_ours(value: object) -> bool:
    # Modules below a folder without `__init__.py` have names that do not begin with `tests`.
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    return str(getattr(module, "__file__", None)).startswith(TESTS)
