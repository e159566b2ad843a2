"""A bucket in which each tenant has a part of the space."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel

from banksman.bus.connection import Bus
from banksman.bus.kv import Bucket
from banksman.contracts.errors import Overloaded
from banksman.contracts.subjects import ANY
from banksman.deployment.tenant_room import TenantRoom

T = TypeVar("T", bound=BaseModel)


class SharedBucket(Bucket[T]):
    """A bucket with keys `{tenant}.{id}`. A tenant that has filled its part creates no further ones.

    What a tenant has stored can be read, replaced and deleted in any case.
    """

    def __init__(self, bus: Bus, name: str, model: type[T], what: str) -> None:
        """Open the bucket.

        Args:
            bus: The connection.
            name: The name of the bucket.
            model: The model of its values.
            what: The values, for the error.
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
            # A repeated request still finds what its first sending stored.
            if await self.get(key) is None:
                raise
            return None
        return await super().create(key, value)
