"""A bucket whose space is shared by tenants."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel

from banksman.bus.connection import Bus
from banksman.bus.storage.kv import Bucket
from banksman.contracts.errors import Overloaded
from banksman.contracts.subjects import ANY
from banksman.deployment.storage import TenantRoom

T = TypeVar("T", bound=BaseModel)


class SharedBucket(Bucket[T]):
    """A bucket with keys `{tenant}.{id}`. A tenant that has filled its part cannot create further keys.

    A tenant can always read, replace and delete its stored values.
    """

    def __init__(self, bus: Bus, name: str, model: type[T], what: str) -> None:
        """Open the bucket.

        Args:
            bus: The connection.
            name: The name of the bucket.
            model: The model of its values.
            what: Name of the values in errors.
        """
        super().__init__(bus, name, model)
        self._room = TenantRoom(bus)
        self._what = what

    async def create(self, key: str, value: T) -> int | None:
        """Write a value if the key has none; return its revision, or None if the key has a value.

        Raises:
            Overloaded: The tenant has filled its part, or as `durable`.
            MessageTooLarge, Unavailable, Forbidden: As `durable`.
        """
        below = f"{self.subject(key.partition('.')[0])}.{ANY}"
        try:
            await self._room.take_part(self.stream, below, len(value.model_dump_json()), self._what)
        except Overloaded:
            # A repeated request must find the value that its first attempt stored.
            if await self.get(key) is None:
                raise
            return None
        return await super().create(key, value)
