"""The docstrings of fields, read from the source when a JSON Schema is built."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise


def field_docstrings(model: type) -> dict[str, str]:
    """Return the docstrings below the fields of a class and its bases, by field name."""
    found: dict[str, str] = {}
    for one in reversed(model.__mro__):
        found.update(_of_module(one.__module__).get(one.__qualname__, {}))
    return found


@cache
def _of_module(name: str) -> dict[str, dict[str, str]]:
    """Return the docstrings of fields by class; none for a module without source, such as `builtins`."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[name]))
    except (OSError, TypeError):
        return {}
    return {node.name: dict(_of_class(node)) for node in tree.body if isinstance(node, ast.ClassDef)}


def _of_class(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, text in pairwise(node.body):
        match field, text:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(docstring))),
            ):
                yield name, inspect.cleandoc(docstring)
            case _:
                pass
