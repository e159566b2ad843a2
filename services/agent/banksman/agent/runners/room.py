"""The limit of the part of an object store that one runner may fill.

All runners share the stores, and the server limits only their total bytes, so the key of one runner could
fill them for all. A runner itself fills at most `OWN_SHARE` of a store. Objects above `MOST_SHARE` were
stored by another process that has the runner's key, and are removed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Final

from banksman.agent.runners.stores import StoreRequests, StoreState
from banksman.bus.connection import Bus
from banksman.bus.names import OUTPUTS, OWNERS, RUNNER_STORES, WORKSPACES
from banksman.bus.storage.kv import Bucket
from banksman.contracts.ids import is_token
from banksman.contracts.workspaces import OWN_SHARE, WorkspaceOwner
from banksman.runtime.scope import Scoped

logger = logging.getLogger(__name__)

MOST_SHARE: Final = 0.8
"""The share of a store above which objects of one runner are removed."""
MEASURED_SHARE: Final = 0.5
"""The share of a store that must be full for runners to be measured."""
FASTEST_BYTES_PER_S: Final = 256 * 1024 * 1024
"""Assumed maximum rate at which a store fills. A server on 2 cores without sync of writes stored 200
MiB/s."""
SOONEST_S: Final = 1.0
LATEST_S: Final = 30.0
"""Seconds between two checks: the less room is free, the shorter."""
PURGES: Final = 8
"""Steps in which the oldest outputs of a runner are removed."""

_Messages = dict[str, dict[str, int]]
"""The number of messages by runner and subject."""
_Place = tuple[str, ...]
"""Tenant, conversation and id of a snapshot; fewer tokens for an object that is not part of a snapshot."""


@dataclass(slots=True)
class _Measured:
    messages: int = 0
    bytes: int = 0
    up_to: int = 0


class RunnerRoom(Scoped):
    """Removes objects of runners above their part of a store; as a context manager it repeats the check.

    Outputs are removed beginning with the oldest. Snapshots that no record names are removed first, then the
    largest ones.
    """

    def __init__(self, bus: Bus, *, soonest_s: float = SOONEST_S) -> None:
        self._bus = bus
        self._soonest_s = self._pause_s = soonest_s
        self._stores = StoreRequests(bus)
        self._owners = Bucket(bus, OWNERS, WorkspaceOwner)
        self._measured: dict[str, dict[str, _Measured]] = {store: {} for store in RUNNER_STORES}
        self._checked_seq: dict[str, int] = dict.fromkeys(RUNNER_STORES, -1)

    async def _enter(self, scope: AsyncExitStack) -> None:
        task = self._bus.background.repeat(
            "runner-room", self.check, wait=lambda: asyncio.sleep(self._pause_s)
        )
        scope.push_async_callback(task.stop)

    async def check(self) -> None:
        # The next check must take place before the free room can be filled.
        fills_in_s = [await self._check(store) / FASTEST_BYTES_PER_S for store in RUNNER_STORES]
        self._pause_s = max(self._soonest_s, min(LATEST_S, *fills_in_s))

    async def _check(self, store: str) -> int:
        state = await self._stores.state(store)
        free_bytes = state.max_bytes - state.held_bytes
        if state.held_bytes <= MEASURED_SHARE * state.max_bytes:
            self._measured[store].clear()
        elif state.last_seq != self._checked_seq[store]:
            subjects = await self._by_runner(store)
            after = await self._stores.state(store)
            # Objects that others store or remove between the requests must not count as the runner's.
            held_bytes = min(state.held_bytes, after.held_bytes)
            for runner in subjects:
                if runner and await self._exceeds(store, runner, subjects, held_bytes, state):
                    await self._remove(store, runner, state)
            self._checked_seq[store] = state.last_seq
        return free_bytes

    async def _by_runner(self, store: str) -> _Messages:
        """Return the messages in a store; those of objects without an owner are under runner ""."""
        found = defaultdict[str, dict[str, int]](dict)
        async for subject, messages in self._stores.subjects(store, f"$O.{store}.>"):
            _, _, _, *place = subject.split(".")
            found[place[0] if len(place) > 1 else ""][subject] = messages
        measured = self._measured[store]
        present = {subject for subjects in found.values() for subject in subjects}
        self._measured[store] = {subject: one for subject, one in measured.items() if subject in present}
        return found

    async def _exceeds(
        self, store: str, runner: str, by_runner: _Messages, held_bytes: int, state: StoreState
    ) -> bool:
        most_bytes = int(MOST_SHARE * state.max_bytes)
        own = by_runner[runner]
        others = dict(
            chain.from_iterable(found.items() for other, found in by_runner.items() if other != runner)
        )
        of_own, of_others = sum(own.values()), sum(others.values())
        if min(held_bytes, of_own * state.max_message_bytes) <= most_bytes:
            return False
        if of_others < of_own:
            # The server reports only the bytes of all runners together. Read the smaller set of messages.
            left_bytes = held_bytes - most_bytes
            most_of_others = of_others * state.max_message_bytes
            return most_of_others < left_bytes or not await self._is_more(store, others, left_bytes)
        return await self._is_more(store, own, most_bytes)

    async def _is_more(self, store: str, subjects: dict[str, int], limit_bytes: int) -> bool:
        held_bytes = 0
        for subject, messages in subjects.items():
            held_bytes += await self._bytes_on(store, subject, messages)
            if held_bytes >= limit_bytes:
                return True
        return False

    async def _bytes_on(self, store: str, subject: str, messages: int) -> int:
        """Return the bytes on a subject, which the server does not report; each message is read once."""
        known = self._measured[store].setdefault(subject, _Measured())
        while known.messages < messages:
            message = await self._stores.next(store, subject, known.up_to)
            if message is None:
                break
            known.messages += 1
            known.bytes += len(message.data)
            known.up_to = message.stream_seq
        return known.bytes

    async def _remove(self, store: str, runner: str, state: StoreState) -> None:
        logger.error(
            "the objects of runner %s take more than %d %% of the store %s. A runner stores less, so another "
            "process may have its key. Objects above the runner's part are removed",
            runner,
            round(100 * MOST_SHARE),
            store,
        )
        if store == OUTPUTS:
            await self._remove_oldest(runner, state)
        else:
            await self._remove_snapshots(runner, await self._recorded_places(runner), state)

    async def _remove_oldest(self, runner: str, state: StoreState) -> None:
        """Remove a runner's oldest outputs until all objects take at most `OWN_SHARE` of the store."""
        behind = state.last_seq + 1 - state.first_seq
        for part in range(1, PURGES + 1):
            before = state.first_seq + behind * part // PURGES
            await self._stores.purge(OUTPUTS, _of(OUTPUTS, runner), before=before)
            left = await self._stores.state(OUTPUTS)
            if left.held_bytes <= OWN_SHARE * left.max_bytes:
                return

    async def _remove_snapshots(self, runner: str, recorded: set[_Place], state: StoreState) -> None:
        """Remove all snapshots without a record, including unfinished ones, and the largest of the others."""
        if not recorded:
            await self._stores.purge(WORKSPACES, _of(WORKSPACES, runner))
            return
        held = Counter[_Place]()
        for subject, messages in (await self._by_runner(WORKSPACES)).get(runner, {}).items():
            place = _place_of(subject)
            if place in recorded:
                held[place] += await self._bytes_on(WORKSPACES, subject, messages)
            else:
                await self._stores.purge(WORKSPACES, subject)
        excess_bytes = held.total() - OWN_SHARE * state.max_bytes
        for place, held_bytes in held.most_common():
            if excess_bytes <= 0:
                return
            below = ".".join((runner, *place))
            await self._stores.purge(WORKSPACES, f"$O.{WORKSPACES}.*.{below}")
            await self._stores.purge(WORKSPACES, f"$O.{WORKSPACES}.*.{below}.>")
            excess_bytes -= held_bytes

    async def _recorded_places(self, runner: str) -> set[_Place]:
        subjects = (await self._by_runner(WORKSPACES)).get(runner, {})
        recorded = set[_Place]()
        for workspace in {_place_of(subject)[:2] for subject in subjects}:
            if len(workspace) == 2 and all(is_token(token) for token in workspace):
                entry = await self._owners.get(".".join(workspace))
                snapshot = None if entry is None or entry.value.deleted else entry.value.snapshot
                if snapshot is not None and snapshot.stored_by == runner:
                    recorded.add((*workspace, snapshot.id))
        return recorded


def _place_of(subject: str) -> _Place:
    return tuple(subject.split(".")[4:7])


def _of(store: str, runner: str) -> str:
    return f"$O.{store}.*.{runner}.>"
