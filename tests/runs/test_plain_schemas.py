"""The quick check of values accepts only values that the full check accepts, and takes few steps."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from banksman.contracts.tools import ToolDefinition
from banksman.contracts.workspace_tools import WORKSPACE_TOOLS
from banksman.runs.schema_checks.checker import SchemaChecker, SchemaLimits, certainly_fits
from banksman.runs.schema_checks.rules import value_fault

SCALARS = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([1.0, 2.5]) | st.sampled_from("abé")
)
NAMES = st.sampled_from("xyz")
VALUES = st.recursive(
    SCALARS, lambda part: st.lists(part, max_size=3) | st.dictionaries(NAMES, part, max_size=3), max_leaves=8
)
TYPES = st.sampled_from(["array", "boolean", "integer", "null", "number", "object", "string"])
LEAVES = st.fixed_dictionaries(
    {},
    optional={
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=2, unique=True),
        "enum": st.lists(SCALARS, min_size=1, max_size=3, unique_by=repr),
        "minimum": st.integers(-2, 2),
        "exclusiveMaximum": st.integers(-2, 2),
        "minLength": st.integers(0, 2),
        "maxItems": st.integers(0, 2),
        "description": st.just("x"),
        "pattern": st.just("^a"),
    },
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda part: st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["array", "object"]),
            "properties": st.dictionaries(NAMES, part, max_size=3),
            "required": st.lists(NAMES, max_size=2, unique=True),
            "additionalProperties": st.booleans(),
            "items": part,
            "anyOf": st.lists(part, min_size=1, max_size=2),
        },
    ),
    max_leaves=6,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(SCHEMAS, VALUES)
def test_value_that_the_quick_check_accepts_is_valid(schema: dict[str, Any], value: Any) -> None:
    if certainly_fits(schema, value):
        assert value_fault(json.dumps(schema), value) is None


@pytest.mark.parametrize("tool", WORKSPACE_TOOLS, ids=lambda tool: tool.name)
def test_usual_arguments_of_the_workspace_tools_need_no_full_check(tool: ToolDefinition) -> None:
    usual = {"command": "ls", "path": "a", "content": "", "url": "https://example.com", "timeout_s": 5}
    usual["process"] = "p1"
    names: Any = tool.input_schema["properties"]

    fits = certainly_fits(tool.input_schema, {name: value for name, value in usual.items() if name in names})

    # Only the library checks patterns, and the objects of a list.
    assert fits == (tool.name not in ("search_code", "edit_file"))


HOSTILE: dict[str, tuple[Any, Any]] = {
    "many values": ({"items": {"type": "object"}}, [{}] * 1_000_000),
    "many names for many values": (
        {"items": {"required": [f"n{n}" for n in range(5_000)]}},
        [{f"n{n}": 0 for n in range(5_000)}] * 1_000,
    ),
    "a long enum": ({"items": {"enum": [f"n{n}" for n in range(5_000)]}}, ["n4999"] * 100_000),
    "many properties": (
        {"properties": {}, "additionalProperties": False},
        {f"n{n}": 0 for n in range(100_000)},
    ),
}


def doubling() -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(60):
        schema = {"anyOf": [schema, schema]}
    return schema


def deep(levels: int) -> tuple[dict[str, Any], list[Any]]:
    schema: dict[str, Any] = {}
    value: list[Any] = []
    for _ in range(levels):
        schema, value = {"items": schema}, [value]
    return schema, value


@pytest.mark.parametrize(
    ("schema", "value"),
    [*HOSTILE.values(), (doubling(), 1), deep(2_000)],
    ids=[*HOSTILE, "alternatives of alternatives", "depth"],
)
def test_any_schema_and_value_is_checked_in_bounded_time(schema: Any, value: Any) -> None:
    began = time.process_time()

    assert not certainly_fits(schema, value)

    # A hundred times the usual time; without the limit of steps each case would take seconds.
    assert time.process_time() - began < 0.5


async def test_plain_arguments_start_no_process() -> None:
    plain = ToolDefinition(
        name="add",
        description="x",
        server="s",
        input_schema={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    )

    # A process with these limits could not reply.
    async with SchemaChecker(SchemaLimits(cpu_s=0.001, memory_bytes=1)) as checker:
        assert await checker.argument_problem("acme", plain, {"a": 1}) is None
        assert await checker.argument_problem("acme", plain, {"a": "x"}) is not None
