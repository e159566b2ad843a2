"""Schemas of tool servers are applied within limits, in processes that do nothing else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from banksman.contracts.errors import BadInput
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.wire import JsonObject
from banksman.runs.schema_checks.checker import SchemaChecker, SchemaLimits, argument_problem, check_schema
from tests.support.deep_values import deep
from tests.support.polling import eventually
from tests.support.system import descendants
from tests.support.timeouts import WAIT_TIMEOUT_S, deadline

TENANT = "acme"
CHECKED_APART: JsonObject = {"minProperties": 0}
"""A keyword that every object fits, and that is not applied within the process."""


@pytest.fixture
async def checker() -> AsyncGenerator[SchemaChecker]:
    async with SchemaChecker(SchemaLimits(cpu_s=0.3, timeout_s=WAIT_TIMEOUT_S)) as one:
        yield one


def tool(**schema: Any) -> ToolDefinition:
    """Return the definition of a tool as a tool server registers it, or an older version stored it."""
    return ToolDefinition(name="hostile", description="x", server="search", input_schema=schema)


def doubling_in_depth() -> ToolDefinition:
    """Return a tool for which the errors of arguments of depth n take 2 ** n steps."""
    child = {"properties": {"x": {"$ref": "#/$defs/node"}}, "required": ["x"]}
    return tool(
        **{"$defs": {"node": {"anyOf": [child, {**child, "minProperties": 1}]}}, "$ref": "#/$defs/node"}
    )


async def test_event_loop_continues_until_an_endless_check_is_ended(checker: SchemaChecker) -> None:
    checking = asyncio.create_task(checker.argument_problem(TENANT, doubling_in_depth(), deep(100)))
    turns = 0
    async with deadline("the check was not ended"):
        while not checking.done():
            await asyncio.wait([checking], timeout=0.01)
            turns += 1

    problem = await checking

    assert problem is not None
    assert "cannot be applied" in problem.expected
    # A check in the event loop itself would leave this task a single turn.
    assert turns > 5


async def test_schema_that_was_too_expensive_is_refused_at_once_for_its_tenant_only(
    checker: SchemaChecker,
) -> None:
    first = await checker.argument_problem(TENANT, doubling_in_depth(), deep(100))
    again = await checker.argument_problem(TENANT, doubling_in_depth(), deep(1))
    other = await checker.argument_problem("globex", doubling_in_depth(), deep(1))

    assert first is not None and "too much time or memory (SIG" in first.expected
    assert again is not None and "cannot be applied" in again.expected
    assert other is not None and "must fit one of the alternatives" in other.expected


async def test_check_that_takes_too_much_memory_is_ended(checker: SchemaChecker) -> None:
    # Each alternative keeps its own error with the whole value.
    broad = tool(type="object", properties={"a": {"items": {"anyOf": [{"type": "string"}] * 900}}})
    value: Any = {"a": [[0] * 200_000] * 3}

    problem = await checker.argument_problem(TENANT, broad, value)

    assert problem is not None


@pytest.mark.parametrize(
    ("schema", "value", "fits"),
    [
        ({"pattern": "^(a+)+$"}, "a" * 60 + "!", False),
        ({"pattern": "^(a+)+$"}, "a" * 60, True),
        ({"uniqueItems": True}, [{"n": n, "of": {"n": [n]}} for n in range(5_000)], True),
        ({"uniqueItems": True}, [{"n": n % 4_999, "of": [n % 4_999]} for n in range(5_000)], False),
        ({"patternProperties": {"^(a+)+$": {"type": "string"}}}, {"a" * 60 + "!": 1}, True),
        ({"multipleOf": 0.5}, 10**4_000, True),
    ],
)
async def test_costly_keywords_take_linear_time(
    checker: SchemaChecker, schema: JsonObject, value: Any, fits: bool
) -> None:
    problem = await checker.argument_problem(TENANT, tool(properties={"a": schema}), {"a": value})

    assert (problem is None) == fits
    assert problem is None or problem.parameter == "a"


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"pattern": "^(?!b)"}}},
        {"properties": {"a": {"$ref": "http://127.0.0.1:9/x"}}},
        {"$schema": "http://127.0.0.1:9/x", "properties": {"a": {"type": "text"}}},
        {"properties": {"a": {"$ref": "#/$defs/missing"}}},
    ],
)
async def test_no_arguments_fit_a_stored_schema_that_cannot_be_applied(
    checker: SchemaChecker, schema: dict[str, Any]
) -> None:
    problem = await checker.argument_problem(TENANT, tool(**schema), {"a": "x"})

    assert problem is not None
    assert problem.parameter == "arguments"
    assert "cannot be applied" in problem.expected


async def test_stored_schema_that_refers_to_itself_ends_no_run(checker: SchemaChecker) -> None:
    await checker.argument_problem(TENANT, tool(**{"$ref": "#"}), {"a": "x"})

    assert await checker.argument_problem(TENANT, tool(**CHECKED_APART), {}) is None


async def test_a_process_ends_when_it_is_not_used_and_the_next_check_starts_another() -> None:
    before = set(descendants(os.getpid()))
    async with SchemaChecker(SchemaLimits(idle_s=0.05)) as checker:
        for title in ("first", "second"):
            await checker.check_schema(TENANT, {"type": "object", "title": title})

            async def ended() -> bool:
                return set(descendants(os.getpid())) <= before

            await eventually(ended)


async def test_a_schema_that_is_registered_again_starts_no_process() -> None:
    """Tool servers register theirs every few seconds."""
    before = set(descendants(os.getpid()))
    async with SchemaChecker(SchemaLimits(idle_s=0.05)) as checker:
        await checker.check_schema(TENANT, {"type": "object"})
        await eventually(lambda: set(descendants(os.getpid())) <= before)

        await checker.check_schema("another", {"type": "object"})

        assert set(descendants(os.getpid())) <= before


async def test_cancelled_check_does_not_leave_its_reply_to_the_next(checker: SchemaChecker) -> None:
    numbers = tool(properties={"a": {"type": "integer"}}, **CHECKED_APART)
    for _ in range(20):
        first = asyncio.create_task(checker.argument_problem(TENANT, numbers, {"a": "no number"}))
        await asyncio.sleep(0)
        first.cancel()
        assert await checker.argument_problem(TENANT, numbers, {"a": 1}) is None


async def test_arguments_of_different_tenants_are_checked_in_parallel(checker: SchemaChecker) -> None:
    endless = [
        asyncio.create_task(checker.argument_problem(TENANT, doubling_in_depth(), deep(100 + n)))
        for n in range(5)
    ]
    await asyncio.sleep(0)

    assert await checker.argument_problem("globex", tool(**CHECKED_APART), {}) is None
    # The first of them ends after its processor time; the next ones are refused at once.
    assert not all(task.done() for task in endless)
    await asyncio.wait(endless)


async def test_recursive_schema_of_a_tree_may_be_registered_and_applied(checker: SchemaChecker) -> None:
    kinds = [
        {"properties": {"op": {"const": op}, "left": {"$ref": "#/$defs/e"}, "right": {"$ref": "#/$defs/e"}}}
        for op in ("add", "mul", "sub", "div")
    ]
    tree = tool(
        **{
            "properties": {"e": {"$ref": "#/$defs/e"}},
            "$defs": {"e": {"anyOf": [{"type": "number"}, *kinds]}},
        }
    )
    await checker.check_schema(TENANT, tree.input_schema)

    value: JsonObject = {"e": {"op": "add", "left": {"op": "mul", "left": 1, "right": 2}, "right": 3}}
    assert await checker.argument_problem(TENANT, tree, value) is None


async def test_deep_nesting_is_refused_before_it_is_read(checker: SchemaChecker) -> None:
    schema: JsonObject = {}
    for _ in range(150):
        schema = {"not": schema}

    with pytest.raises(BadInput, match="nested"):
        await checker.check_schema(TENANT, schema)


@pytest.mark.parametrize(
    ("value", "parameter", "expected"),
    [
        ({"n": "x"}, "n", "must be an integer or null"),
        ({"n": None}, "n", ""),
        ({"list": [1, {"k": 2}]}, "list.1.k", "must be a string"),
        ({"list": [{}]}, "list.0.k", "is required"),
        ({"other": 1}, "other", "is not a known field"),
    ],
)
def test_problem_names_the_argument_and_the_reason(value: JsonObject, parameter: str, expected: str) -> None:
    with_k: JsonObject = {"type": "object", "properties": {"k": {"type": "string"}}, "required": ["k"]}
    schema: JsonObject = {
        "properties": {
            "n": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "list": {"items": {"anyOf": [{"type": "integer"}, with_k]}},
        },
        "additionalProperties": False,
    }

    problem = argument_problem(schema, value)

    if expected:
        assert problem is not None
        assert (problem.parameter, expected in problem.expected) == (parameter, True)
    else:
        assert problem is None


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("k" * 70_000, {"properties": {"a": {}}, "additionalProperties": False}),
        ("k" * 70_000, {"additionalProperties": {"type": "integer"}}),
        ("中" * 12_000, {"additionalProperties": {"type": "integer"}}),
    ],
)
async def test_a_problem_with_a_long_name_is_reported_with_its_beginning(
    checker: SchemaChecker, name: str, rule: dict[str, Any]
) -> None:
    """A model chooses the names in its arguments, and a reply of the process is limited."""
    nested = tool(properties={"x": rule})
    apart = await checker.argument_problem(TENANT, nested, {"x": {name: "no number"}})
    within = argument_problem(nested.input_schema, {"x": {name: "no number"}})
    next_one = await checker.argument_problem(TENANT, nested, {"x": 3})

    assert apart is not None and apart == within
    assert apart.parameter.startswith(f"x.{name[:900]}") and apart.parameter.endswith("…")
    assert len(apart.parameter) < 1_100
    assert next_one is None


TEXTS: list[tuple[dict[str, Any], Any, str]] = [
    ({"type": "string"}, 3, "x must be a string, got 3"),
    ({"type": ["string", "null"]}, 3, "x must be a string or null, got 3"),
    ({"enum": ["a", "b"]}, "c", "x must be one of 'a' or 'b', got 'c'"),
    ({"enum": [*range(25)]}, "c", f"x must be one of {', '.join(map(str, range(20)))} and 5 more, got 'c'"),
    ({"const": 5}, 4, "x must be 5, got 4"),
    ({"minimum": 3}, 1, "x must be at least 3, got 1"),
    ({"exclusiveMaximum": 3}, 3, "x must be less than 3, got 3"),
    ({"multipleOf": 3}, 4, "x must be a multiple of 3, got 4"),
    ({"minLength": 3}, "a", "x must have at least 3 characters, got 'a'"),
    ({"minItems": 1}, [], "x must have at least 1 item, got []"),
    ({"minProperties": 1}, {}, "x must have at least 1 field, got {}"),
    ({"pattern": "^[a-z]{1,3}$"}, "A B", "x must match pattern '^[a-z]{1,3}$', got 'A B'"),
    ({"uniqueItems": True}, [1, 1], "x must not repeat an item, got [1, 1]"),
    ({"contains": {"type": "string"}}, [1], "x must contain as many items of the kind that"),
    ({"not": {"type": "string"}}, "a", "x must not fit the schema in 'not', got 'a'"),
    ({"propertyNames": {"maxLength": 1}}, {"ab": 1}, "x must have names that fit"),
    ({"prefixItems": [{}], "unevaluatedItems": False}, [1, 2], "x must have no further items, got [1, 2]"),
    ({"properties": {"a": {}}, "additionalProperties": False}, {"b": 1}, "x.b is not a known field"),
    ({"additionalProperties": False}, {"ab": 1}, "x must have no fields, got"),
    ({"unevaluatedProperties": False}, {"ab": 1}, "x.ab is not a known field"),
    ({"required": ["ab"]}, {}, "x.ab is required"),
    ({"anyOf": [{"minimum": 3}, {"maximum": 0}]}, 1, "x must be at least 3 or at most 0, got 1"),
    ({"anyOf": [{"type": "string"}, {"required": ["a"]}]}, {}, "x.a is required"),
    ({"oneOf": [{"type": "integer"}, {"minimum": 1}]}, 1, "x must fit exactly one of the alternatives"),
]


@pytest.mark.parametrize(("rule", "value", "text"), TEXTS)
def test_a_broken_rule_is_reported_like_any_other_error(rule: dict[str, Any], value: Any, text: str) -> None:
    """The problem has the field, the expected and the received value, and no text of the library."""
    problem = argument_problem({"properties": {"x": rule}}, {"x": value})

    assert problem is not None and str(problem).startswith(text)


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "text"}, "input_schema.properties.x.type must be one of 'array'"),
        ({"minimum": "a"}, "input_schema.properties.x.minimum must be a number, got 'a'"),
        ({"required": "a"}, "input_schema.properties.x.required must be a list, got 'a'"),
        ({"$ref": "#/missing"}, "input_schema.$ref must refer to a part of the schema"),
    ],
)
def test_an_error_in_a_schema_is_reported_like_any_other(schema: dict[str, Any], text: str) -> None:
    with pytest.raises(BadInput) as refused:
        check_schema({"properties": {"x": schema}})

    assert str(refused.value).startswith(text)
