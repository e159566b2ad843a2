"""Parameter forms (R112)."""

from __future__ import annotations

import pytest

from banksman.contracts.errors import BadInput
from banksman.contracts.registry import WorkflowDefinition
from banksman.contracts.wire import JsonObject
from banksman.runs.schema_checks.checker import SchemaChecker
from banksman.workflows.forms import Forms, check_form, described

FORM: JsonObject = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "day": {"anyOf": [{"type": "string"}, {"type": "null"}], "x-hint": "date"},
        "tags": {"type": "array", "items": {"type": "string"}, "default": ["new"]},
        "options": {
            "type": "object",
            "properties": {"depth": {"type": "integer", "default": 2}, "deep": {"type": "boolean"}},
            "required": ["deep"],
        },
    },
    "required": ["name"],
}


async def filled(form: JsonObject, values: JsonObject) -> JsonObject:
    definition = WorkflowDefinition(name="probe", parameters_schema=form)
    return await Forms(SchemaChecker()).filled(definition, None, values)


async def test_defaults_fill_missing_values_in_nested_objects_too() -> None:
    values = await filled(FORM, {"name": "a", "options": {"deep": True}})

    assert values == {"name": "a", "tags": ["new"], "options": {"deep": True, "depth": 2}}


async def test_default_values_are_not_shared_between_runs() -> None:
    tags = (await filled(FORM, {"name": "a"}))["tags"]
    assert isinstance(tags, list)
    tags.append("changed")

    assert (await filled(FORM, {"name": "a"}))["tags"] == ["new"]


async def test_given_values_are_not_overwritten_by_defaults() -> None:
    assert (await filled(FORM, {"name": "a", "tags": []}))["tags"] == []
    assert (await filled(FORM, {"name": "a", "day": "2028-02-29"}))["day"] == "2028-02-29"


@pytest.mark.parametrize(
    ("values", "field", "expected"),
    [
        ({}, "name", "is required"),
        ({"name": None}, "name", "must be a string"),
        ({"name": "a", "tags": ["b", 3]}, "tags.1", "must be a string"),
        ({"name": "a", "options": {}}, "options.deep", "is required"),
        ({"name": "a", "day": "tomorrow"}, "day", "a date such as"),
        ({"name": "a", "day": "2027-02-30"}, "day", "a date such as"),
        ({"name": "a", "day": "20270203"}, "day", "a date such as"),
    ],
)
async def test_invalid_value_is_named_with_its_path(values: JsonObject, field: str, expected: str) -> None:
    with pytest.raises(BadInput) as refused:
        await filled(FORM, values)

    assert refused.value.field == field
    assert expected in refused.value.expected


def test_form_with_an_invalid_keyword_is_refused_with_its_path() -> None:
    with pytest.raises(BadInput, match=r"parameters_schema\.properties\.name\.type"):
        check_form({"type": "object", "properties": {"name": {"type": "text"}}})


def test_the_values_of_a_form_are_described_without_json() -> None:
    """R15: the first message of a run is text for users."""
    schema: JsonObject = {"properties": {"name": {"type": "string", "title": "Name"}}}
    values: JsonObject = {
        "name": "demo",
        "max_files": 3,
        "tests": True,
        "tags": ["a", "b"],
        "note": "",
        "none": None,
    }
    assert described(schema, values) == ["Name: demo", "Max files: 3", "Tests: yes", "Tags: a, b"]
