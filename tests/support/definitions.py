"""The functions that a source file defines, for tests of pages and paths that name them."""

from __future__ import annotations

import ast
from functools import cache

from tests.support.paths import ROOT


@cache
def defined_in(path: str) -> set[str]:
    """Return the names of all functions of a file; `path` is relative to the checkout."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
