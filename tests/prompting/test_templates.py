from __future__ import annotations

import pytest

from banksman.contracts.errors import BadInput
from banksman.contracts.wire import JsonObject
from banksman.prompting.templates import render, run_variables, variables_of

VARIABLES: JsonObject = {
    "intent": "refund",
    "nested": {"field": "deep", "list": [{"name": "first"}]},
    "count": 3,
    "flag": True,
    "nothing": None,
    "tricky": "{{intent}} \\1 \\g<0>",
}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("Plain.", "Plain."),
        ("{{intent}}", "refund"),
        ("{{ intent }}, {{nested.field}}!", "refund, deep!"),
        ("{{nested.list.0.name}}", "first"),
        ("{{count}} {{flag}} {{nested.list}}", '3 true [{"name": "first"}]'),
        ("{{missing|a default}} {{nothing | none }} {{missing|}}.", "a default none ."),
        ("{{tricky}}", "{{intent}} \\1 \\g<0>"),
        ('{"a": {"b": 1}} and { {x} }', '{"a": {"b": 1}} and { {x} }'),
    ],
)
def test_variables_are_replaced_once(template: str, text: str) -> None:
    """R78."""
    assert render(template, VARIABLES) == text


@pytest.mark.parametrize(
    "name", ["missing", "nested.missing", "nested.field.deeper", "nested.list.9", "nothing"]
)
def test_missing_variable_is_named_in_the_error(name: str) -> None:
    with pytest.raises(BadInput) as error:
        render(f"Hello {{{{{name}}}}}", VARIABLES)

    assert error.value.field == f"variables.{name}"


@pytest.mark.parametrize("braces", ["{{}}", "{{ }}", "{{two words}}", "{{'a'}}", "{{|x}}"])
def test_braces_without_a_name_never_reach_a_model(braces: str) -> None:
    with pytest.raises(BadInput, match="system_prompt"):
        render(braces, VARIABLES)


def test_every_run_has_the_four_standard_variables() -> None:
    """R78."""
    variables = run_variables(service="shop", user_message="hi {{intent}}", variables={"intent": "refund"})

    text = render("{{service}}|{{intent}}|{{rag_context}}|{{user_message}}", variables)

    assert text == "shop|refund||hi {{intent}}"


def test_null_leaves_a_standard_variable_at_its_default_and_nothing_replaces_the_message() -> None:
    """R78."""
    given: JsonObject = {"intent": None, "user_message": "other", "service": None}

    variables = run_variables(service="shop", user_message="hi", variables=given)

    assert render("{{service}}|{{intent}}|{{user_message}}", variables) == "shop||hi"


def test_variables_of_a_template_are_listed_in_order() -> None:
    assert variables_of("{{a}} {{b.c|x}} {{a}}") == ("a", "b.c")
