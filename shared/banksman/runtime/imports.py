"""Imports without optional libraries, which cost a process time and memory and which it does not use."""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def without(*libraries: str) -> Generator[None]:
    """Let imports in this context not find these libraries, unless they are loaded already.

    For libraries that import them only if they are installed. Code that imports one of them later finds it.
    """
    hidden = [name for name in libraries if name not in sys.modules]
    # `None` makes an import raise ModuleNotFoundError: https://docs.python.org/3/library/sys.html#sys.modules
    sys.modules.update(dict.fromkeys(hidden))  # pyright: ignore[reportArgumentType, reportCallIssue]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
