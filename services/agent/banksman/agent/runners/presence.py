"""Ends the leases of processes whose connections are closed, long before they expire.

A lease lasts long enough to survive a broker that is silent for seconds. A killed process can be recognised
sooner than a silent one: the kernel closes the connection, and the server then reports that no process serves
the subjects of the process. A frozen or partitioned process keeps its connection, so its lease ends only when
it expires. See docs/decisions/0020. All agents receive the reply to each check, so the number of checks does
not grow with the number of agents.

The processes of a tool server share these subjects. A process that returns after a crash replies in place of
its former life, whose lease then ends too: the later process replies, and the former one is silent.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from contextlib import AsyncExitStack

from pydantic import ValidationError

from banksman.bus.connection import Bus
from banksman.bus.errors import NoResponders, WrongLastSequence
from banksman.bus.messages import Message
from banksman.bus.names import STATUS_NO_RESPONDERS
from banksman.bus.settings import Replicas
from banksman.bus.storage.kv import Entry
from banksman.bus.storage.leases import end_lease
from banksman.contracts import subjects
from banksman.contracts.calls import PRESENCE, CallReply, CancelCall, RunnerLease
from banksman.contracts.errors import Forbidden, Unavailable
from banksman.contracts.ids import new_id
from banksman.runs.runners.placement import Placements
from banksman.runtime.scope import Scoped

logger = logging.getLogger(__name__)

OVERDUE_S = 1.1
"""Seconds without a renewal or a reply to a check after which the connection of a holder is checked. A holder
that executes calls renews every second and is not checked. An idle holder is checked once between two
renewals."""
SPREAD_S = 0.15
"""Seconds over which agents spread their checks: a reply to the first check makes the others unnecessary."""
CHECK_S = 0.25
CLOSED_S: Mapping[Replicas, float] = {1: 1.0, 3: 6.0}
"""Seconds for which a connection must be found closed, or only a later process must reply, by number of
replicas. A process reconnects to a single server within a second; with three servers, it may try the
unreachable ones first."""
RECONNECT_S = 4.0
"""Seconds without checks after a reconnect of this process: a restart of the broker closes all connections,
so the other processes reconnect too."""
PROBE_S = 0.5
"""Seconds to wait for the reply to a check. Without any reply the connection counts as open."""
CONCURRENT = 64


class RunnerPresence(Scoped):
    def __init__(self, bus: Bus, placements: Placements) -> None:
        self._bus = bus
        self._placements = placements
        self._closed_since: dict[tuple[str, int], float] = {}
        """When the connection of a holder was first found closed, by the key and revision of its lease."""
        self._replied_at: dict[tuple[str, int], float] = {}
        """When a holder last replied to a check, by the key and revision of its lease."""
        self._followed_since: dict[tuple[str, int], float] = {}
        """When a later process first replied in place of a holder, by the key and revision of its lease."""
        self._connected_at = float("-inf")
        self._replies = f"{bus.inbox_prefix}.presence"
        """Prefix of the subjects of replies. All agents receive them: their inboxes share a prefix."""
        self._own = new_id("")
        """Distinguishes the replies to this process's own checks."""

    async def _enter(self, scope: AsyncExitStack) -> None:
        self._reconnected()
        scope.callback(self._bus.on_reconnect(self._reconnected))
        subscription = await self._bus.listen(f"{self._replies}.>", self._replied)
        scope.push_async_callback(subscription.unsubscribe)
        task = self._bus.background.repeat("runner-presence", self._check, wait=self._wait)
        scope.push_async_callback(task.stop)

    def _reconnected(self) -> None:
        self._connected_at = asyncio.get_running_loop().time()

    async def _wait(self) -> None:
        """Wait until the next lease can be overdue. While one is overdue, checks repeat after `CHECK_S`."""
        now = asyncio.get_running_loop().time()
        due_at = min((self._confirmed_at(entry, at) for entry, at in self._placements.renewed()), default=now)
        await asyncio.sleep(max(due_at + OVERDUE_S + random.uniform(0, SPREAD_S) - now, CHECK_S))

    def _confirmed_at(self, entry: Entry[RunnerLease], renewed_at: float) -> float:
        return max(renewed_at, self._replied_at.get((entry.key, entry.revision), renewed_at))

    def _overdue(self, before: float) -> list[Entry[RunnerLease]]:
        renewed = self._placements.renewed()
        current = {(entry.key, entry.revision) for entry, _ in renewed}
        for known in (self._replied_at, self._followed_since):
            for lease in known.keys() - current:
                del known[lease]
        return [entry for entry, at in renewed if self._confirmed_at(entry, at) < before]

    async def _check(self) -> None:
        loop = asyncio.get_running_loop()
        overdue = self._overdue(loop.time() - OVERDUE_S)
        if not overdue or not self._bus.connected:
            self._closed_since.clear()
            return
        current = {(entry.key, entry.revision) for entry in overdue}
        # A renewal begins the count again: the process was only disconnected.
        self._closed_since = {lease: at for lease, at in self._closed_since.items() if lease in current}
        for start in range(0, len(overdue), CONCURRENT):
            async with asyncio.TaskGroup() as group:
                for entry in overdue[start : start + CONCURRENT]:
                    group.create_task(self._check_holder(entry))

    async def _check_holder(self, entry: Entry[RunnerLease]) -> None:
        lease = (entry.key, entry.revision)
        closed = await self._is_closed(entry)
        now, long_enough_s = asyncio.get_running_loop().time(), CLOSED_S[self._bus.settings.replicas]
        if now - self._followed_since.get(lease, now) >= long_enough_s:
            await self._end(entry)
        elif not closed or now < self._connected_at + RECONNECT_S:
            self._closed_since.pop(lease, None)
        elif now - self._closed_since.setdefault(lease, now) >= long_enough_s:
            await self._end(entry)

    async def _is_closed(self, entry: Entry[RunnerLease]) -> bool:
        holder, *rest = entry.key.split(".")
        # `{server}.{tenant}.{epoch}`: the account of a tenant serves the calls of that tenant only.
        tenant = rest[0] if len(rest) == 2 else PRESENCE
        subject = subjects.tool_cancel(holder, tenant, PRESENCE)
        epoch = int(rest[-1]) if rest else None
        check = CancelCall(attempt=PRESENCE, runner_epoch=epoch, renewed_at=entry.revision)
        cancel = check.model_dump_json().encode()
        token = self._bus.replies.new_token()
        reply = f"{self._replies}.{self._own}.{token}.{entry.revision}.{entry.key}"
        sent_at = asyncio.get_running_loop().time()
        try:
            await self._bus.replies.request(subject, cancel, timeout_s=PROBE_S, token=token, reply=reply)
        except NoResponders:
            return True
        except (Unavailable, Forbidden):
            # Without any reply, the connection was open when the check was sent: a frozen process keeps its
            # connection, and not every tool server replies.
            self._replied_at[entry.key, entry.revision] = sent_at
        return False

    def _replied(self, message: Message) -> None:
        checked = message.subject.removeprefix(f"{self._replies}.")
        agent, token, revision, key = checked.split(".", 3)
        lease, now = (key, int(revision)), asyncio.get_running_loop().time()
        reply = _process_of(message)
        other = reply.runner_epoch is not None and not key.endswith(f".{reply.runner_epoch}")
        if not other:
            self._followed_since.pop(lease, None)
        elif (reply.leased_at or 0) > int(revision):
            self._followed_since.setdefault(lease, now)
            self._replied_at.pop(lease, None)
        # The server reports a closed connection only to the agent that checks it.
        if message.status != STATUS_NO_RESPONDERS and lease not in self._followed_since:
            self._replied_at[lease] = now
        if agent == self._own:
            self._bus.replies.deliver(token, message)

    async def _end(self, entry: Entry[RunnerLease]) -> None:
        try:
            await end_lease(self._bus, entry.key, entry.revision, budget_s=PROBE_S)
        except WrongLastSequence:
            # It was renewed, taken by the next process, or it has expired: after a restart of everything the
            # server counts from its last renewal, and this process from its own start.
            await self._placements.look_again(entry.key)
        except Unavailable as error:
            logger.warning("the lease of %s is not ended yet: %s", entry.key, error)
        else:
            logger.warning("the connection of %s is closed: its lease has been ended", entry.key)


def _process_of(message: Message) -> CallReply:
    """Return the reply of a process; one without an epoch if the process names none."""
    try:
        return CallReply.model_validate_json(message.data)
    except ValidationError:
        return CallReply(answer="done")
