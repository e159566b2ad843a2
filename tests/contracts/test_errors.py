"""The tree of exceptions."""

from __future__ import annotations

import inspect
import re

from banksman.contracts import errors
from banksman.contracts.errors import BanksmanError, Signal

LINE = re.compile(r"^(?P<indent>[│ ]*)(?:[├└]── )?(?P<name>[A-Z]\w+)")


def drawn() -> dict[str, str | None]:
    """Return the parents of the classes in the drawn tree; None for a root."""
    _, *trees = inspect.cleandoc(errors.__doc__ or "").split("\n\n")
    parents: dict[str, str | None] = {}
    for tree in trees:
        path: list[str] = []
        for line in tree.splitlines():
            found = LINE.match(line)
            assert found is not None, line
            depth = len(found["indent"]) // 4 + ("── " in line)
            path[depth:] = [found["name"]]
            parents[found["name"]] = path[depth - 1] if depth else None
    return parents


def test_the_tree_in_the_docstring_equals_the_classes() -> None:
    roots = (BanksmanError, Signal)
    classes = [
        one
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, roots) and one.__module__ == errors.__name__
    ]
    assert drawn() == {one.__name__: None if one in roots else one.__mro__[1].__name__ for one in classes}
