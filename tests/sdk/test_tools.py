"""Tools from typed functions."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

import pytest
from pydantic import BaseModel, Field

from banksman.contracts.errors import BadInput, Conflict, NotFound
from banksman.contracts.tools import ToolDefinition
from banksman.runs.schema_checks.checker import check_schema
from banksman.sdk import Tool, Toolbox, ToolContext


@pytest.fixture
def box() -> Toolbox:
    return Toolbox()


class Place(BaseModel):
    """Where."""

    latitude: float
    longitude: float


CONTEXT = cast(ToolContext, None)


def properties(tool: Tool[..., Any]) -> dict[str, Any]:
    return cast(dict[str, Any], tool.definition.input_schema["properties"])


def test_schema_comes_from_annotations_and_descriptions_from_the_docstring(box: Toolbox) -> None:
    """R42, R51: name, description, parameters with types, defaults and descriptions."""

    @box.tool
    def find(
        query: str,
        places: list[Place],
        limit: Annotated[int, Field(ge=1, le=50)] = 10,
        kind: Literal["a", "b"] = "a",
    ) -> str:
        """Find things near places.

        Looks them up in the index.

        Args:
            query: What to look for,
                in plain words.
            places (list): Where.
            limit: How many at most: fewer may come.

        Returns:
            What was found.
        """
        return query

    assert (find.name, box.get("find")) == ("find", find)
    assert find.definition.description == "Find things near places.\n\nLooks them up in the index."
    schemas = properties(find)
    assert schemas["query"] == {"type": "string", "description": "What to look for, in plain words."}
    assert schemas["places"]["items"] == {"$ref": "#/$defs/Place"}
    assert schemas["limit"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 50,
        "default": 10,
        "description": "How many at most: fewer may come.",
    }
    assert schemas["kind"]["enum"] == ["a", "b"]
    assert find.definition.input_schema["required"] == ["query", "places"]
    check_schema(find.definition.input_schema)


def test_block_before_the_sections_belongs_to_the_description(box: Toolbox) -> None:
    @box.tool
    def convert(value: float, unit: str) -> float:
        """Convert a length.
        Units:
        - km: kilometres

        Rounding:
            Half to even.

        Note:
            Not for models.
        Args:
            value: The length.

            unit (str, optional): Of the
                list above.
        Returns:
            The length in metres.
        """
        return value

    assert convert.definition.description == (
        "Convert a length.\nUnits:\n- km: kilometres\n\nRounding:\n    Half to even."
    )
    assert [schema["description"] for schema in properties(convert).values()] == [
        "The length.",
        "Of the list above.",
    ]


NUMPY = """Convert a length.

Parameters
----------
value : float
    The length.
"""
SPHINX = """Convert a length.

:param value: The length.
:returns: The length in metres.
"""


@pytest.mark.parametrize("docstring", [NUMPY, SPHINX])
def test_docstring_in_numpy_or_sphinx_style_describes_the_parameters(box: Toolbox, docstring: str) -> None:
    def convert(value: float) -> float:
        return value

    convert.__doc__ = docstring
    made = box.tool(convert)

    assert made.definition.description == "Convert a length."
    assert properties(made)["value"]["description"] == "The length."


def test_decorated_function_is_still_callable(box: Toolbox) -> None:
    @box.tool(name="add_up", description="Add.", requires_approval=True, category="sums", timeout_s=3)
    def add(first: int, second: int = 1) -> int:
        return first + second

    assert add(2) == 3
    definition = add.definition
    assert (definition.name, definition.description, definition.category) == ("add_up", "Add.", "sums")
    assert (definition.requires_approval, definition.timeout_s) == (True, 3)


@pytest.mark.parametrize("schema", [None, {}])
def test_empty_schema_becomes_an_object_without_properties(schema: object) -> None:
    """R52: models always get the schema of an object."""
    definition = ToolDefinition.model_validate({"name": "now", "description": "x", "input_schema": schema})

    assert definition.input_schema == {"type": "object", "properties": {}}


def test_second_tool_with_a_name_is_refused_and_the_first_stays(box: Toolbox) -> None:
    """R44: locally, before any request."""

    @box.tool(name="now", description="first")
    def first() -> None: ...

    def second() -> None: ...

    with pytest.raises(Conflict, match="'now' is already registered"):
        box.tool(name="now", description="second")(second)

    assert box.get("now") is first
    assert [tool.name for tool in box] == ["now"]
    with pytest.raises(NotFound, match="then"):
        box.get("then")


async def test_arguments_are_converted_to_the_annotated_types(box: Toolbox) -> None:
    """R45: models, defaults, and parameters with the names of pydantic methods."""

    @box.tool(description="x")
    def where(place: Place, copy: bool = False, model_dump: str = "no") -> tuple[type, bool, str]:
        return type(place), copy, model_dump

    value = await where.invoke({"place": {"latitude": 59, "longitude": 10.7}, "copy": True}, CONTEXT)

    assert value == (Place, True, "no")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "place is required"),
        ({"place": {"latitude": 1.0}}, r"place\.longitude is required"),
        ({"place": {"latitude": "north", "longitude": 1}}, r"place\.latitude must be a number, got 'north'"),
        (
            {"place": {"latitude": 1, "longitude": 1}, "colour": "red"},
            "colour is not a known field",
        ),
    ],
)
async def test_invalid_argument_is_named_in_the_error(
    box: Toolbox, arguments: dict[str, Any], message: str
) -> None:
    """R53: the error has the reason, and the function is not called."""

    @box.tool(description="x")
    def where(place: Place) -> None:
        raise AssertionError("called")

    with pytest.raises(BadInput, match=message):
        await where.invoke(arguments, CONTEXT)


def test_context_parameter_is_not_in_the_schema(box: Toolbox) -> None:
    @box.tool(description="x")
    def whose(context: ToolContext, name: str) -> None: ...

    assert list(properties(whose)) == ["name"]


def untyped(what) -> None:
    """Do."""


def variadic(*what: str) -> None:
    """Do."""


def undescribed(what: str) -> None: ...


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (untyped, "untyped: parameter 'what' has no type"),
        (variadic, "variadic: parameter 'what' cannot be passed by name"),
        (undescribed, "undescribed: a docstring or a description"),
    ],
)
def test_function_without_types_or_description_is_refused(box: Toolbox, function: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        box.tool(function)
    assert len(box) == 0
