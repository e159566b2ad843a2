"""Errors of concurrent tasks."""

from __future__ import annotations

from typing import cast


def first_error(error: BaseException) -> BaseException:
    """Return the first error in nested groups, so that a caller of a task group sees its own type."""
    if isinstance(error, BaseExceptionGroup):
        return first_error(cast(BaseExceptionGroup[BaseException], error).exceptions[0])
    return error
