"""Where the broker stores data of tenants; deletes all data of a tenant, and counts the remaining data.

The system must be running: agents end the runs, and runners delete the workspaces and their snapshots.
"""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from pydantic import ValidationError

from banksman.bus import dead, jetstream, names
from banksman.bus.connection import Bus
from banksman.bus.names import kv_stream, kv_subject, object_stream
from banksman.bus.publish import RunQueue
from banksman.bus.storage.kv import Bucket
from banksman.bus.storage.objects import Objects
from banksman.contracts import subjects
from banksman.contracts.errors import NotReady
from banksman.contracts.subjects import ANY
from banksman.contracts.usage import passthrough_key, usage_key
from banksman.contracts.wire import Stored
from banksman.contracts.work import DeadLetter, DeleteConversation
from banksman.deployment.topology import TABLES
from banksman.log_integrity.heads import LogHeads

STARTING = (names.KEYS, names.WEBHOOKS, names.SCHEDULES, names.MCP)
"""Buckets whose entries can cause new runs or requests: they are emptied first."""
POLL_S = 0.5
RECORDED_S = 6.0
"""Seconds within which agents record a commit, see `HeadsRecorder`."""
STORES = {"APP": (names.SNAPSHOTS, names.ARCHIVE), "RUN": (names.OUTPUTS, names.WORKSPACES)}

Counts = Counter[str]


class _Work(Stored):
    """A message that names its tenant."""

    tenant: str


class _Value(Stored):
    """A value of any bucket: only keys are used."""


async def end_conversations(bus: Bus, tenant: str, timeout_s: float) -> int:
    """Delete the tenant's conversations as their users would, wait for the end, and return their number.

    Raises:
        NotReady: They were not deleted within `timeout_s` seconds, for example because no agent is running.
    """
    for name in STARTING:
        await _empty(bus, name, tenant)
    await jetstream.purge_subject(bus, names.TIMERS, subjects.schedule_set(tenant, ANY))
    await jetstream.purge_subject(bus, names.TIMERS, subjects.schedule_due(tenant, ANY))
    found = {
        subject.split(".")[2]
        async for subject, _ in jetstream.subjects_in(bus, names.EVENTS, subjects.conversation(tenant, ANY))
    }
    found |= {key.split(".")[1] for key in await Bucket(bus, "conversations", _Value).keys(tenant)}
    queue = RunQueue(bus)
    for conversation_id in sorted(found):
        signal = DeleteConversation(tenant=tenant, conversation_id=conversation_id, by="operator")
        await queue.signal(signal, f"delete-{conversation_id}")
    await _finished(bus, tenant, timeout_s)
    return len(found)


async def remove(bus: Bus, tenant: str) -> Counts:
    """Remove a tenant's data from account APP; return the counts. The tenant must have no open runs."""
    removed = Counts()
    for name in TENANT_KEYS:
        await _empty(bus, name, tenant)
    for place in PLACES:
        removed[place.stream] += await jetstream.purge_subject(bus, place.stream, place.subjects_of(tenant))
    letters = [letter.stream_seq async for letter in _letters(bus, tenant)]
    for stream_seq in letters:
        await dead.remove(bus, stream_seq)
    removed["DEAD"] = len(letters)
    # An agent records the last commits of the tenant's logs within seconds.
    await asyncio.sleep(RECORDED_S)
    await LogHeads(bus).forget(lambda log: log.startswith(f"{tenant}."))
    return removed


async def remove_objects(bus: Bus, account: str, tenant: str) -> Counts:
    removed = Counts()
    for store in STORES[account]:
        objects = Objects(bus, store)
        named = [info.name async for info in objects.list(f"{tenant}/")]
        for name in named:
            await objects.delete(name)
        removed[object_stream(store)] = len(named)
    return removed


async def left(bus: Bus, tenant: str) -> Counts:
    found = Counts()
    for place in PLACES:
        async for _, count in jetstream.subjects_in(bus, place.stream, place.subjects_of(tenant)):
            found[place.stream] += count
    async for _ in _letters(bus, tenant):
        found["DEAD"] += 1
    for heads in (await LogHeads(bus).segments()).values():
        found[kv_stream(names.HEADS)] += sum(log.startswith(f"{tenant}.") for log in heads)
    return +found  # without zeros


async def left_objects(bus: Bus, account: str, tenant: str) -> Counts:
    found = Counts()
    for store in STORES[account]:
        async for _ in Objects(bus, store).list(f"{tenant}/"):
            found[object_stream(store)] += 1
    return found


async def _finished(bus: Bus, tenant: str, timeout_s: float) -> None:
    """Wait until no message for the tenant's runs is left.

    Raises:
        NotReady: Messages remain after the timeout.
    """
    end = asyncio.get_running_loop().time() + timeout_s
    while waiting := await _working(bus, tenant):
        if asyncio.get_running_loop().time() > end:
            reason = f"{waiting} messages for runs of {tenant!r} are not handled after {timeout_s:g} s"
            raise NotReady(f"{reason}: is the system running? No other data was deleted; repeat the command")
        await asyncio.sleep(POLL_S)


async def _working(bus: Bus, tenant: str) -> int:
    count = await jetstream.count_below(bus, names.RUNS, subjects.run_signal(tenant, ANY))
    count += await jetstream.count_below(bus, names.RUNS, subjects.run_work(tenant, ANY))
    return count + await jetstream.count_below(bus, names.WORKFLOWS, subjects.workflow_run(ANY, tenant, ANY))


async def _empty(bus: Bus, name: str, tenant: str) -> None:
    """Delete the keys of a tenant one by one: watchers of a bucket are notified of deletions, not purges."""
    bucket = Bucket(bus, name, _Value)
    for key in await bucket.keys(tenant):
        await bucket.delete(key)


async def _letters(bus: Bus, tenant: str) -> AsyncIterator[dead.StoredDeadLetter]:
    async for stored in dead.dead_letters(bus):
        if _names(stored.letter, tenant):
            yield stored


def _names(letter: DeadLetter, tenant: str) -> bool:
    if tenant in letter.subject.split("."):
        return True
    try:
        return _Work.model_validate_json(base64.b64decode(letter.payload_base64)).tenant == tenant
    except ValidationError:
        return False


Filter = Callable[[str], str]
"""Returns the subjects of a tenant, or with `*` those of all tenants."""

_OTHER_KEYS = frozenset({names.RUNNERS, names.USAGE, names.HEADS, names.SECRETS})
TENANT_KEYS = tuple(name for name in TABLES["buckets"] if name not in _OTHER_KEYS)
"""Buckets whose keys begin with the tenant. Keys of the platform have one token."""


@dataclass(frozen=True, slots=True)
class TenantSubjects:
    """Subjects of one stream that name a tenant."""

    stream: str
    subjects_of: Filter

    def tenant_of(self, subject: str) -> str:
        probe = self.subjects_of("tenant-probe").split(".")
        return subject.split(".")[probe.index("tenant-probe")]


def _bucket(name: str) -> TenantSubjects:
    return TenantSubjects(kv_stream(name), lambda tenant: kv_subject(name, f"{tenant}.>"))


PLACES = (
    *(
        TenantSubjects(stream, pattern.of_tenant)
        for stream, fields in TABLES["streams"].items()
        for name in fields["subjects"]
        if (pattern := subjects.pattern(name)) is not None
    ),
    TenantSubjects(kv_stream(names.RUNNERS), lambda tenant: kv_subject(names.RUNNERS, f"*.{tenant}.*")),
    TenantSubjects(kv_stream(names.USAGE), lambda tenant: kv_subject(names.USAGE, usage_key(tenant))),
    TenantSubjects(kv_stream(names.USAGE), lambda tenant: kv_subject(names.USAGE, passthrough_key(tenant))),
    *(_bucket(name) for name in TENANT_KEYS),
)
