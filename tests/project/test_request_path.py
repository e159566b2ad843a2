"""`docs/request-path.md` names functions that exist."""

from __future__ import annotations

from tools import request_path


def test_request_path_names_existing_functions() -> None:
    unknown = [
        (module, name)
        for module, name in request_path.path()
        if name not in request_path.functions_of(module)
    ]

    assert unknown == []


def test_page_of_the_request_path_is_current() -> None:
    assert request_path.PAGE.read_text(encoding="utf-8") == request_path.page()


def test_request_path_does_not_grow() -> None:
    """A reader who follows one request crosses so many files and functions."""
    path = set(request_path.path())

    assert len({module for module, _ in path}) <= 53
    assert len(path) <= 143
