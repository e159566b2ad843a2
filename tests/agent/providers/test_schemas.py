"""The schemas of tools in the form that a model's API accepts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.providers.histories import TOOLS, user
from tests.agent.providers.played_server import chat_chunks, played_server
from tests.support.deltas import Shown

from banksman.agent.protocols.base import ModelReply, ModelRequest
from banksman.agent.providers.base import ProviderSettings
from banksman.agent.providers.catalog import Providers
from banksman.agent.providers.profiles import Profile, profile_of
from banksman.agent.providers.schemas import MAX_SCHEMA_CHARS, Inexpressible, reduced
from banksman.contracts.tools import ToolDefinition
from banksman.contracts.workspace_tools import WORKSPACE_TOOLS

HERE = "http://127.0.0.1:9/v1"
GEMINI = profile_of(HERE, "m", "gemini").tool_schema
OPENAI = profile_of(HERE, "m", "openai").tool_schema
UNKNOWN = Profile().tool_schema

GEMINI_FIELDS = frozenset(
    "anyOf default description enum example format items maxItems maxLength maxProperties maximum minItems "
    "minLength minProperties minimum nullable pattern properties propertyOrdering required title type".split()
)


def object_of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def in_gemini(schema: Any) -> Any:
    """Return the reduced schema of one property."""
    return reduced(object_of(x=schema), GEMINI)["properties"]["x"]


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({"type": "integer", "exclusiveMinimum": 0}, {"type": "integer", "minimum": 1}),
        ({"type": "number", "exclusiveMaximum": 1.5}, {"type": "number", "maximum": 1.5}),
        ({"type": "number", "minimum": 2, "exclusiveMinimum": True}, {"type": "number", "minimum": 2}),
        ({"const": "a"}, {"type": "string", "enum": ["a"]}),
        ({"const": 3}, {"type": "integer"}),
        ({"enum": ["a", None]}, {"type": "string", "nullable": True, "enum": ["a"]}),
        ({"type": ["string", "null"], "minLength": 1}, {"type": "string", "minLength": 1, "nullable": True}),
        (
            {"type": ["string", "integer"], "description": "d", "minLength": 1, "maximum": 5},
            {
                "description": "d",
                "anyOf": [{"type": "string", "minLength": 1}, {"type": "integer", "maximum": 5}],
            },
        ),
        (
            {"oneOf": [{"type": "string"}, {"type": "null"}]},
            {"anyOf": [{"type": "string"}, {"type": "string", "nullable": True}]},
        ),
        ({"description": "Anything."}, {"type": "string", "description": "Anything."}),
        ({"minimum": 1}, {"type": "number", "minimum": 1}),
        ({"type": "string", "format": "email", "x-note": 1}, {"type": "string"}),
        ({"type": "string", "format": "date-time"}, {"type": "string", "format": "date-time"}),
        ({"type": "array"}, {"type": "array", "items": {"type": "string"}}),
        (
            {"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]},
            {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "integer"}]}},
        ),
        (True, {"type": "string"}),
        (
            {"type": "object", "additionalProperties": True},
            {"type": "string", "description": "(a JSON object, written as text)"},
        ),
        (
            {"allOf": [object_of(a={"type": "string"}), {"required": ["a"], "description": "d"}]},
            {
                "type": "object",
                "properties": {"a": {"type": "string"}},
                "required": ["a"],
                "description": "d",
            },
        ),
        (
            {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a", "gone"]},
            {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
        ),
    ],
)
def test_a_keyword_that_gemini_lacks_is_replaced(given: Any, sent: Any) -> None:
    assert in_gemini(given) == sent


def test_alternatives_at_the_top_level_become_one_object() -> None:
    """OpenAI and Anthropic refuse `anyOf`, `oneOf` and `allOf` there."""
    schema = {
        "anyOf": [
            {**object_of(id={"type": "integer"}, note={"type": "string"}), "required": ["id", "note"]},
            {**object_of(name={"type": "string"}, note={"type": "string"}), "required": ["name", "note"]},
        ],
    }

    sent = reduced({"type": "object", **schema}, OPENAI)

    assert sent == {
        **object_of(id={"type": "integer"}, note={"type": "string"}, name={"type": "string"}),
        "required": ["note"],
    }


TREE = {
    **object_of(node={"$ref": "#/$defs/Node"}),
    "$defs": {
        "Node": object_of(value={"$ref": "#/$defs/Value"}, next={"$ref": "#/$defs/Node", "description": "d"}),
        "Value": {"type": "integer"},
    },
}


def test_references_are_replaced_unless_the_api_understands_them() -> None:
    inlined = reduced(TREE, UNKNOWN)

    assert inlined == object_of(node=object_of(value={"type": "integer"}, next={"description": "d"}))
    assert reduced(TREE, OPENAI) == TREE
    assert reduced(object_of(x={"$ref": "https://a.example/s", "type": "string"}), OPENAI) == object_of(
        x={"type": "string"}
    )


def test_references_that_multiply_stay_bounded() -> None:
    """Each definition refers twice to the next one: 2^40 subschemas."""
    definitions = {
        f"d{level}": object_of(a={"$ref": f"#/$defs/d{level + 1}"}, b={"$ref": f"#/$defs/d{level + 1}"})
        for level in range(40)
    }
    bomb = {**object_of(x={"$ref": "#/$defs/d0"}), "$defs": definitions}
    joined = {"$defs": {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}}

    for schema in (bomb, {**joined, "allOf": [{"$ref": "#/$defs/d0"}], "type": "object"}):
        try:
            assert len(json.dumps(reduced(schema, GEMINI))) <= 2 * MAX_SCHEMA_CHARS
        except Inexpressible as refused:
            assert "too large" in str(refused)


def test_a_schema_is_the_same_each_time_and_unchanged_where_nothing_is_refused() -> None:
    for tool in (*WORKSPACE_TOOLS, *TOOLS):
        assert reduced(tool.input_schema, OPENAI) == tool.input_schema
        assert json.dumps(reduced(tool.input_schema, GEMINI)) == json.dumps(
            reduced(tool.input_schema, GEMINI)
        )


def gemini_problem(schema: Any) -> str | None:
    """Return what Google refuses in a schema: https://ai.google.dev/api/caching#Schema"""
    if not isinstance(schema, dict):
        return "not an object"
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    inner += [schema["items"]] if "items" in schema else []
    if found := next(filter(None, map(gemini_problem, inner)), None):
        return found
    kind, enum = schema.get("type"), schema.get("enum", ["x"])
    problems = {
        "field": not schema.keys() <= GEMINI_FIELDS,
        "type": "anyOf" not in schema
        and kind not in ("object", "array", "string", "integer", "number", "boolean"),
        "properties": kind == "object" and not schema.get("properties"),
        "required": any(name not in schema.get("properties", {}) for name in schema.get("required", ())),
        "items": kind == "array" and "items" not in schema,
        "enum": "enum" in schema
        and (kind != "string" or not enum or not all(isinstance(one, str) for one in enum)),
        "format": schema.get("format", "enum") not in ("enum", "date-time"),
    }
    return next((name for name, broken in problems.items() if broken), None)


names = st.sampled_from(["a", "b", "c"])
scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text("xyz", max_size=3)
kinds = st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null", "any"])


def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    keywords = {
        "type": kinds | st.lists(kinds, max_size=3),
        "properties": st.dictionaries(names, inner, max_size=3),
        "required": st.lists(names, max_size=3),
        "items": inner | st.lists(inner, max_size=2),
        "prefixItems": st.lists(inner, max_size=2),
        "anyOf": st.lists(inner, max_size=3),
        "oneOf": st.lists(inner, max_size=3),
        "allOf": st.lists(inner, max_size=3),
        "not": inner,
        "additionalProperties": inner,
        "enum": st.lists(scalars, max_size=3),
        "const": scalars,
        "format": st.sampled_from(["email", "date-time", "int32"]),
        "exclusiveMinimum": st.integers(-3, 3) | st.booleans(),
        "minimum": st.integers(-3, 3),
        "$ref": st.sampled_from(["#", "#/$defs/d", "#/properties/a", "https://a.example/"]),
        "$defs": st.fixed_dictionaries({"d": inner}),
        "x-unknown": scalars,
    }
    return st.fixed_dictionaries({}, optional=keywords)


@given(larger(st.recursive(st.booleans() | st.just({}), larger, max_leaves=12)))
def test_every_schema_is_reduced_to_one_that_gemini_accepts(schema: dict[str, Any]) -> None:
    try:
        sent = reduced(schema, GEMINI)
    except Inexpressible:
        return

    assert sent == {} or (sent["type"] == "object" and gemini_problem(sent) is None)


@given(larger(st.recursive(st.booleans() | st.just({}), larger, max_leaves=12)))
def test_every_schema_has_a_plain_object_at_its_top_level(schema: dict[str, Any]) -> None:
    try:
        sent = reduced(schema, UNKNOWN)
    except Inexpressible:
        return

    assert sent["type"] == "object"
    assert isinstance(sent["properties"], dict)
    assert sent.keys().isdisjoint({"anyOf", "oneOf", "allOf", "enum", "not", "const"})
    assert "$ref" not in json.dumps(sent).replace('"$defs"', "")


def tool(name: str, schema: dict[str, Any] | None = None) -> ToolDefinition:
    fields = {} if schema is None else {"input_schema": schema}
    return ToolDefinition.model_validate({"name": name, "description": "d" * 2_000, **fields})


async def complete(vendor: str, *tools: ToolDefinition) -> tuple[ModelReply, dict[str, Any]]:
    async with played_server() as server:
        server.replies = [chat_chunks({"content": "Hello."})]
        entry = {"base_url": server.url, "vendor": vendor}
        providers = Providers(ProviderSettings.model_validate({"providers": {"mine": entry}}))
        provider, model = providers.choose("mine:any")
        request = ModelRequest(model, "", (user("Hi"),), tools)
        reply = await provider.complete(request, deltas=Shown(), deadline_s=20)
        await providers.close()
        return reply, server.bodies[0]


async def test_a_tool_that_cannot_be_expressed_is_left_out_with_a_notice() -> None:
    """One tool of an MCP server must not cost the run."""
    reply, body = await complete(
        "anthropic",
        tool("odd", object_of(**{"a b": {}})),
        tool("fine", object_of(a={})),
        tool("listed", {"type": "array"}),
    )

    assert [one["function"]["name"] for one in body["tools"]] == ["fine"]
    assert [(notice.kind, notice.text.split(" is ")[0]) for notice in reply.notices] == [
        ("tool_left_out", "The tool odd"),
        ("tool_left_out", "The tool listed"),
    ]


async def test_limits_of_tools_follow_the_profile() -> None:
    many = [tool(f"t{number}", object_of(a={})) for number in range(130)]

    reply, body = await complete("openai", *many)

    assert len(body["tools"]) == 128
    assert [notice.text.split()[2] for notice in reply.notices] == ["t128", "t129"]
    assert {len(one["function"]["description"]) for one in body["tools"]} == {1024}


async def test_a_tool_without_parameters_is_sent_without_a_schema_to_gemini() -> None:
    _, body = await complete("gemini", tool("ping"))
    _, elsewhere = await complete("vllm", tool("ping"))

    assert "parameters" not in body["tools"][0]["function"]
    assert elsewhere["tools"][0]["function"]["parameters"] == {"type": "object", "properties": {}}
