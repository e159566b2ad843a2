"""`banksman check`, `accept` and `salvage`: find and repair damaged logs and files, and let runs continue."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from banksman.bus.clock import BrokerClock
from banksman.bus.connection import Bus
from banksman.bus.names import DAMAGED, EVENTS, HEADS, kv_stream
from banksman.bus.storage.kv import Bucket
from banksman.cli import output
from banksman.cli.broker.salvage import LIBRARY, REMEDY, DamagedPart, Salvaged, is_available
from banksman.cli.broker.salvage import salvage as salvage_files
from banksman.cli.broker.store import rebuild_states, remove_indexes, replace_settings
from banksman.cli.operator.recovery import LogRecovery, cut
from banksman.cli.operator.streams import broker_access
from banksman.cli.output import Exit
from banksman.contracts.administration import DamagedLog
from banksman.contracts.errors import BadInput, BanksmanError, NotReady
from banksman.log_integrity.check import check_logs
from banksman.log_integrity.damage import DamagedLogs
from banksman.log_integrity.heads import LogHeads, lost_ends

_NEEDS = (EVENTS, kv_stream(HEADS), kv_stream(DAMAGED))


def check(data_dir: Path | None, *, as_json: bool) -> Exit:
    found = asyncio.run(broker_access(data_dir).in_app(_damaged, needs=_NEEDS))
    for log, problem in sorted(found.items()):
        tenant, _, conversation_id = log.partition(".")
        if as_json:
            output.print_json({"tenant": tenant, "conversation_id": conversation_id, "problem": problem})
        else:
            output.print_line(f"{_name(log)}: {problem}")
    if found and not as_json:
        output.print_error(
            "No run continues in these. Restore a backup (`banksman restore`), or continue with the "
            "remaining events (`banksman accept TENANT/CONVERSATION`)."
        )
    elif not as_json:
        output.print_line("all logs are intact")
    return Exit.CRITICAL if found else Exit.OK


def accept(data_dir: Path | None, names: list[str], set_aside: Path | None, *, as_json: bool) -> Exit:
    """Start a new epoch in damaged logs, so that runs continue with the remaining events.

    Args:
        names: `TENANT/CONVERSATION` each; empty for all damaged logs.
        set_aside: Directory for the messages that follow a gap; None leaves a log with a gap as it is.
    """
    requested = [_key(name) for name in names]
    done, refused = asyncio.run(
        broker_access(data_dir).in_app(lambda bus: _accept(bus, requested, set_aside), needs=_NEEDS)
    )
    if as_json:
        output.print_json({"accepted": done, "refused": refused})
    else:
        for name in done:
            output.print_line(f"{name}: runs continue with the remaining events")
        for name, reason in refused.items():
            remedy = "restore a backup, or set aside the events after the gap (`--set-aside DIRECTORY`)"
            output.print_error(f"{name}: runs cannot continue, {remedy}: {reason}")
        if not done and not refused:
            output.print_line("no log is damaged")
    return Exit.CRITICAL if refused else Exit.OK


async def _damaged(bus: Bus) -> dict[str, str]:
    """Return the problems by `{tenant}.{conversation}`."""
    found = {log: problem async for log, problem in check_logs(bus)} | await lost_ends(bus)
    reports = Bucket(bus, DAMAGED, DamagedLog)
    return found | {entry.key: entry.value.problem async for entry in reports.entries()}


async def _accept(bus: Bus, requested: list[str], set_aside: Path | None) -> tuple[list[str], dict[str, str]]:
    known = await _damaged(bus)
    if unknown := [log for log in requested if log not in known]:
        raise BadInput("conversation", _name(unknown[0]), "a log listed by `banksman check`")
    damaged = DamagedLogs(bus)
    accepted: list[str] = []
    refused: dict[str, str] = {}
    async with BrokerClock(bus) as clock:
        recovery = LogRecovery(bus, clock)
        for log in requested or sorted(known):
            tenant, _, conversation_id = log.partition(".")
            try:
                lost = None if set_aside is None else await cut(bus, tenant, conversation_id, set_aside)
                await recovery.recover(tenant, conversation_id, cut=lost)
            except BanksmanError as error:
                refused[_name(log)] = str(error)
                await damaged.report(log, str(error))
            else:
                accepted.append(log)
    await LogHeads(bus).forget(set(accepted).__contains__)
    for log in accepted:
        await damaged.clear(log)
    return [_name(log) for log in accepted], refused


def _name(key: str) -> str:
    return key.replace(".", "/", 1)


def _key(name: str) -> str:
    tenant, slash, conversation_id = name.partition("/")
    if not (tenant and slash and conversation_id) or "/" in conversation_id:
        raise BadInput("conversation", name, "TENANT/CONVERSATION, as listed by `banksman check`")
    return f"{tenant}.{conversation_id}"


def salvage(store: Path, *, as_json: bool) -> Exit:
    """Prepare a store as `banksman up` does before each start; return a warning if messages are lost."""
    if not (store / "jetstream").is_dir():
        raise BadInput("directory", str(store), "the `store_dir` of a nats-server")
    if not is_available():
        raise NotReady(f"{LIBRARY} is not installed: {REMEDY}")
    remove_indexes(store)
    found = salvage_files(store)
    rebuilt = [*replace_settings(store), *rebuild_states(store)]
    if as_json:
        for one in found:
            output.print_json(_as_json(one))
        return Exit.WARNING if found else Exit.OK
    for one in found:
        output.print_line(str(one))
        for damage in one.damages:
            if name := _conversation(one, damage):
                output.print_line(f"{name}: lost {damage.messages}")
    for line in rebuilt or ([] if found else ["no message is damaged"]):
        output.print_line(line)
    return Exit.WARNING if found else Exit.OK


def _as_json(salvaged: Salvaged) -> dict[str, Any]:
    return {
        "account": salvaged.account,
        "stream": salvaged.stream,
        "file": salvaged.file,
        "original": salvaged.original,
        "lost": [
            {
                "first_seq": damage.first_seq,
                "last_seq": damage.last_seq,
                "subject": damage.subject,
                "conversation": _conversation(salvaged, damage),
            }
            for damage in salvaged.damages
        ],
    }


def _conversation(salvaged: Salvaged, damage: DamagedPart) -> str | None:
    """Return `TENANT/CONVERSATION` of a damaged commit, if its subject can be read."""
    kind, *names = (damage.subject or "").split(".")
    return (
        "/".join(names) if salvaged.stream == EVENTS and kind == "conversation" and len(names) == 2 else None
    )
