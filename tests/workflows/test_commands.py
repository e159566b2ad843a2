"""Parameters of a workflow from a command (R22, R112)."""

from __future__ import annotations

import pytest

from banksman.bus.connection import Bus
from banksman.bus.errors import RemoteError
from banksman.contracts.errors import BadInput
from banksman.contracts.registry import ParsedWorkflow, ParseWorkflow
from banksman.contracts.wire import JsonObject
from banksman.runtime.service import ServiceProcess
from banksman.workflows.forms import read_parameters, split_command
from tests.workflows.test_registry import request

FORM: JsonObject = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "deep": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "sizes": {"type": "array", "items": {"type": "integer"}},
        "options": {"type": "object"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    },
    "required": ["name"],
    "x-positional": ["name", "note"],
}


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        ("/x name=demo count=3", {"name": "demo", "count": 3}),
        ('/x name="a b" note=\'c "d"\'', {"name": "a b", "note": 'c "d"'}),
        ("/x demo 'two words'", {"name": "demo", "note": "two words"}),
        ("/x name=n positional", {"name": "n", "note": "positional"}),
        ("/x demo a=b", {"name": "demo", "note": "a=b"}),
        ("/x ratio=0.5 deep=yes", {"ratio": 0.5, "deep": True}),
        ("/x tags=a,b sizes=1,2", {"tags": ["a", "b"], "sizes": [1, 2]}),
        ("/x tags=a tags=b,c", {"tags": ["a", "b,c"]}),
        ("/x 'options={\"a\": 1}'", {"options": {"a": 1}}),
        ("/x name=", {"name": ""}),
    ],
)
def test_a_command_fills_the_form(text: str, parameters: JsonObject) -> None:
    name, words = split_command(text)

    assert (name, read_parameters(FORM, words)) == ("x", (parameters, []))


@pytest.mark.parametrize(
    ("text", "parameter", "expected"),
    [
        ("/x count=many", "count", "a whole number"),
        ("/x count=1.5", "count", "a whole number"),
        ("/x deep=perhaps", "deep", "yes or no"),
        ("/x options=1", "options", "a JSON object"),
        ("/x count=1 count=2", "count", "one value"),
        ("/x a b c", "c", "a parameter of the workflow"),
        ("/x a b colour=red", "colour", "a parameter of the workflow"),
    ],
)
def test_a_wrong_parameter_of_a_command_is_named(text: str, parameter: str, expected: str) -> None:
    _, problems = read_parameters(FORM, split_command(text)[1])

    assert [(one.parameter, expected in one.expected) for one in problems] == [(parameter, True)]


def test_a_name_is_not_read_as_the_number_of_a_positional_parameter() -> None:
    form: JsonObject = {"properties": {"count": {"type": "integer"}}, "x-positional": ["count"]}

    parameters, problems = read_parameters(form, ["colour=red", "3"])

    assert parameters == {"count": 3}
    assert [(one.parameter, one.value) for one in problems] == [("colour", "red")]


@pytest.mark.parametrize("text", ["create a project", "/", "/x 'open", "/a.b", "/../x"])
def test_a_text_that_is_no_command_is_refused(text: str) -> None:
    with pytest.raises(BadInput, match="text"):
        split_command(text)


async def test_the_service_completes_a_command_and_names_missing_parameters(
    link: Bus, service: ServiceProcess
) -> None:
    async def parsed(text: str) -> ParsedWorkflow:
        return ParsedWorkflow.model_validate_json(await request(link, "parse", ParseWorkflow(text=text)))

    complete = await parsed('/create_project demo description="A demo"')
    missing = await parsed("/create_project template=web")
    wrong = await parsed("/create_project Demo")

    assert complete.parameters == {"name": "demo", "template": "python", "description": "A demo"}
    assert complete.problems == ()
    assert [one.parameter for one in missing.problems] == ["name"]
    assert missing.parameters == {"template": "web", "description": ""}
    assert [one.parameter for one in wrong.problems] == ["name"]
    with pytest.raises(RemoteError, match="no workflow with id 'nothing'"):
        await parsed("/nothing")
