"""`banksman check` and `banksman accept`: which logs are damaged, and going on with what is left of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.bus.kv import Bucket
from banksman.bus.names import DAMAGED, EVENTS, HEADS, kv_stream
from banksman.cli import output
from banksman.cli.operator.operate import Operator
from banksman.cli.operator.restored import Revival
from banksman.cli.output import Exit
from banksman.contracts.errors import BadInput, BanksmanError
from banksman.contracts.integrity import DamagedLog
from banksman.log_integrity.check import check_logs, conversations
from banksman.log_integrity.damage import ALL, DamagedLogs, key_of
from banksman.log_integrity.heads import LogHeads
from banksman.log_integrity.survey import survey

_NEEDS = (EVENTS, kv_stream(HEADS), kv_stream(DAMAGED))


def check(data_dir: Path | None, *, as_json: bool) -> Exit:
    """Read every log, and name those that are not whole, lost their end, or are known to be damaged.

    Raises:
        Unavailable: NATS cannot be reached.
    """
    found = asyncio.run(Operator(data_dir).in_app(_damaged, needs=_NEEDS))
    for key, problem in sorted(found.items()):
        tenant, _, conversation_id = key.partition(".")
        if as_json:
            named = {"tenant": tenant, "conversation_id": conversation_id} if conversation_id else {}
            output.emit({**named, "problem": problem})
        else:
            output.say(f"{tenant}/{conversation_id}: {problem}" if conversation_id else problem)
    if found and not as_json:
        output.complain(
            "No run goes on in these. Restore a backup (`banksman restore`), or go on with what is left "
            "(`banksman accept TENANT/CONVERSATION`)."
        )
    elif not as_json:
        output.say("every log is whole")
    return Exit.CRITICAL if found else Exit.OK


def accept(data_dir: Path | None, names: list[str], *, as_json: bool) -> Exit:
    """Give logs that lost their end a new epoch, and let runs go on in them.

    Args:
        data_dir: Of the system that runs here.
        names: `TENANT/CONVERSATION` each; none for every damaged log.
        as_json: Whether to print JSON.

    Raises:
        BadInput: a name has another form, or its log is not known to be damaged.
        Unavailable: NATS cannot be reached.
    """
    asked = [_key(name) for name in names]
    done, refused = asyncio.run(Operator(data_dir).in_app(lambda bus: _accept(bus, asked), needs=_NEEDS))
    if as_json:
        output.emit({"accepted": done, "refused": refused})
    else:
        for name in done:
            output.say(f"{name}: runs go on with what is left")
        for name, reason in refused.items():
            output.complain(f"{name}: it cannot be gone on from, restore a backup: {reason}")
        if not done and not refused:
            output.say("no log is damaged")
    return Exit.CRITICAL if refused else Exit.OK


async def _damaged(bus: Bus) -> dict[str, str]:
    """What is wrong, by `{tenant}.{conversation}`; under `all` what is wrong with all logs together."""
    known = Bucket(bus, DAMAGED, DamagedLog)
    found = {entry.key: entry.value.problem async for entry in known.entries()}
    for log in (await survey(LogHeads(bus))).damaged:
        found.setdefault(key_of(log.tenant, log.conversation_id), log.problem)
    async for damage in check_logs(bus):
        found.setdefault(key_of(damage.tenant, damage.conversation_id), damage.problem)
    return found


async def _accept(bus: Bus, asked: list[str]) -> tuple[list[str], dict[str, str]]:
    bucket = Bucket(bus, DAMAGED, DamagedLog)
    known = {entry.key async for entry in bucket.entries()}
    if unknown := [key for key in asked if key not in known]:
        raise BadInput("conversation", unknown[0].replace(".", "/", 1), "one that `banksman check` names")
    keys = asked or sorted(known - {ALL})
    if not asked and ALL in known:
        keys = [key_of(*one) async for one in conversations(bus)]
    damaged = DamagedLogs(bus)
    done: list[str] = []
    refused: dict[str, str] = {}
    async with BrokerClock(bus) as clock:
        revival = Revival(bus, clock)
        for key in keys:
            tenant, _, conversation_id = key.partition(".")
            name = f"{tenant}/{conversation_id}"
            try:
                await revival.revive(tenant, conversation_id)
            except BanksmanError as error:
                refused[name] = str(error)
                await damaged.report(tenant, conversation_id, str(error))
            else:
                await damaged.clear(tenant, conversation_id)
                done.append(name)
    if not asked:
        await damaged.clear("", "")
    return done, refused


def _key(name: str) -> str:
    tenant, slash, conversation_id = name.partition("/")
    if not (tenant and slash and conversation_id) or "/" in conversation_id:
        raise BadInput("conversation", name, "TENANT/CONVERSATION, as `banksman check` names it")
    return key_of(tenant, conversation_id)
