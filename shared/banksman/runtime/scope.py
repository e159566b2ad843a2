"""The base of context managers that begin several things, such as tasks and subscriptions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from typing import Self


class Scoped(ABC):
    """A context manager that ends what `_enter` has begun, in reverse order, also if `_enter` raises."""

    @abstractmethod
    async def _enter(self, scope: AsyncExitStack) -> None:
        """Begin, and register the end of each thing in `scope`."""

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as scope:
            await self._enter(scope)
            self._scope = scope.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._scope.aclose()
