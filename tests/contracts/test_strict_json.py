"""Texts that the strict parser refuses although most parsers accept them."""

import pytest
from pydantic import ValidationError

from banksman.contracts.errors import BadInput
from banksman.contracts.wire import strict_json
from banksman.contracts.workflows import ToolStep


@pytest.mark.parametrize(
    "text",
    [
        b'{"a": "\\ud800"}',
        b'{"a": ["x\\uDFFFy"]}',
        b'{"\\ud800": 1}',
        '{"a": "\ud800"}',
        b'{"a": "\xed\xa0\x80"}',
        b'{"a": "\xff"}',
    ],
)
def test_half_of_a_surrogate_pair_is_refused_at_any_position(text: bytes | str) -> None:
    with pytest.raises(BadInput, match="lone surrogates"):
        strict_json(text)


@pytest.mark.parametrize("text", [b'"\\ud83d\\ude00"', '"\U0001f600"', '"\U0001f600"'.encode()])
def test_a_character_beyond_the_first_plane_is_read_in_every_form(text: bytes | str) -> None:
    assert strict_json(text) == "\U0001f600"


@pytest.mark.parametrize("text", [b'{"a": 1, "a": 1}', b"[NaN]", b"[1" * 200 + b"]" * 200])
def test_text_that_parsers_read_differently_is_refused(text: bytes) -> None:
    with pytest.raises(BadInput):
        strict_json(text)


def test_a_step_of_a_workflow_has_no_number_above_a_double() -> None:
    """Otherwise its tool would receive null, and an approval would show it."""
    with pytest.raises(ValidationError, match="larger than a double"):
        ToolStep.model_validate_json('{"step": "s", "tool": "t", "arguments": {"n": [1e400]}}')
