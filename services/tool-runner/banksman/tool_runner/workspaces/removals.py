"""Requests of a runner to remove its objects, because its permissions include no purge of the stores."""

from __future__ import annotations

from typing import Literal

from pydantic import ValidationError

from banksman.bus.connection import Bus
from banksman.bus.storage.objects import Objects
from banksman.contracts import subjects
from banksman.contracts.errors import Unavailable
from banksman.contracts.workspaces import ObjectRemoval, ObjectRemovalReply

REPLY_S = 10.0


def objects_of(bus: Bus, store: Literal["outputs", "workspaces"], runner: str) -> Objects:
    """Return a store that contains objects of a runner."""

    async def remove(name: str) -> None:
        request = ObjectRemoval(store=store, name=name)
        reply = await bus.request(
            subjects.object_removal(runner), request.model_dump_json().encode(), REPLY_S
        )
        try:
            ObjectRemovalReply.model_validate_json(reply)
        except ValidationError as error:
            raise Unavailable(f"{store}/{name} was not removed: {reply[:200]!r}") from error

    return Objects(bus, store, remove=remove)
