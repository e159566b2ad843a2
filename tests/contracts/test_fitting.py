"""Sizes in bytes of UTF-8 JSON."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from banksman.contracts.wire import first_fitting, json_bytes


@pytest.mark.parametrize(
    ("text", "size"), [("", 2), ("x", 3), ("ä", 4), ("語", 5), ("🏗", 6), ('"', 4), ("\n", 4)]
)
def test_size_counts_bytes_and_json_escapes(text: str, size: int) -> None:
    assert json_bytes(text) == size


def test_first_form_that_fits_is_returned_and_later_ones_are_not_computed() -> None:
    def forms() -> Iterator[str]:
        yield "x" * 100
        yield "ä" * 10
        raise AssertionError("a form was computed that is not needed")

    assert first_fitting(forms(), 22) == "ä" * 10


def test_last_form_is_returned_if_none_fits() -> None:
    assert first_fitting(["xxxx", "xxx"], 1) == "xxx"


def test_an_empty_sequence_of_forms_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        first_fitting([], 1)
