"""Requests of agents to the object stores of account RUN."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple, cast

from banksman.bus import jetstream
from banksman.bus.connection import Bus
from banksman.bus.names import CODE_NO_MESSAGE, CODE_STREAM_NOT_FOUND, api, object_stream, runner_api


class StoreState(NamedTuple):
    """How full an object store is."""

    held_bytes: int
    max_bytes: int
    """0 if the store does not exist or has no limit."""
    first_seq: int
    last_seq: int
    """Stream sequences of the first and of the last message."""
    max_message_bytes: int


class StoreRequests:
    """The part of the JetStream API that agents may use on the object stores of account RUN."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        settings = bus.settings
        # Without a key in the settings, the broker has no accounts, and the default JetStream API serves all
        # streams.
        self._api = runner_api if settings.nkey_seed or settings.nkey_seed_file else api

    async def state(self, store: str) -> StoreState:
        """Return how full a store is.

        Raises:
            Unavailable: The broker does not respond.
        """
        try:
            info = await jetstream.call(self._bus, self._api("STREAM.INFO", object_stream(store)))
        except jetstream.ApiError as error:
            if error.err_code == CODE_STREAM_NOT_FOUND:
                return StoreState(0, 0, 0, 0, 0)
            raise
        config, state = cast(dict[str, int], info["config"]), cast(dict[str, int], info["state"])
        return StoreState(
            state["bytes"],
            max(0, config["max_bytes"]),
            state["first_seq"],
            state["last_seq"],
            config["max_msg_size"] if config.get("max_msg_size", -1) > 0 else self._bus.max_payload,
        )

    async def subjects(self, store: str, below: str) -> AsyncIterator[tuple[str, int]]:
        """Yield the subjects of a store that match `below`, each with its number of messages.

        Raises:
            Unavailable: The broker does not respond.
        """
        stream = object_stream(store)
        request = self._api("STREAM.INFO", stream)
        async for found in jetstream.subjects_in(self._bus, stream, below, request=request):
            yield found

    async def last(self, store: str, subject: str) -> jetstream.StoredMessage | None:
        """Return the last message on a subject; None if there is none.

        Raises:
            Unavailable: The broker does not respond.
        """
        response = await self._call("STREAM.MSG.GET", store, {"last_by_subj": subject})
        return None if response is None else jetstream.stored_message(response)

    async def next(self, store: str, subject: str, after: int) -> jetstream.StoredMessage | None:
        """Return the next message on a subject after a stream sequence; None if there is none.

        Raises:
            Unavailable: The broker does not respond.
        """
        body = {"seq": after + 1, "next_by_subj": subject}
        response = await self._call("STREAM.MSG.GET", store, body)
        return None if response is None else jetstream.stored_message(response)

    async def purge(self, store: str, subject: str, *, before: int | None = None) -> None:
        """Remove all messages of matching subjects, or only those before a stream sequence.

        Raises:
            Unavailable: The broker does not respond.
        """
        body: dict[str, Any] = {"filter": subject}
        await self._call("STREAM.PURGE", store, body if before is None else {**body, "seq": before})

    async def _call(self, verb: str, store: str, body: dict[str, Any]) -> dict[str, Any] | None:
        try:
            return await jetstream.call(self._bus, self._api(verb, object_stream(store)), body)
        except jetstream.ApiError as error:
            if error.err_code == CODE_NO_MESSAGE:
                return None
            raise
