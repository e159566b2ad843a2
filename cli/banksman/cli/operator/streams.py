"""How operator commands connect to the broker, and `banksman streams`."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from pydantic import Field

from banksman.bus.connection import NatsSettings
from banksman.cli import output
from banksman.cli.broker.access import BrokerAccess
from banksman.cli.broker.keys import seed_file
from banksman.cli.output import Exit
from banksman.cli.state import DataDir
from banksman.deployment import users
from banksman.deployment.streams import provision, verify
from banksman.deployment.topology import StorageBudget
from banksman.runtime.settings import Section, ServiceSettings, load

_CONNECT_TIMEOUT_S = 5


class OperatorSection(Section):
    """How operator commands reach both accounts, and the storage for all streams."""

    run_nkey_seed_file: Path | None = None
    """Seed of the operator's user in account RUN; None leaves that account out."""
    storage_bytes: int = Field(default=20 * 1024**3, gt=0)
    """Bytes that all streams together may use; the same as `max_file_store` of the server."""


class OperatorSettings(ServiceSettings):
    nats: NatsSettings = NatsSettings()
    operator: OperatorSection = OperatorSection()


def broker_access(data_dir: Path | None) -> BrokerAccess:
    """Return the access to the system that runs in the data directory, or to the one in the settings."""
    settings = load(OperatorSettings)
    data = DataDir((data_dir or settings.data_dir).resolve())
    running = data.running()
    # An explicit URL wins: a shell in the directory of a local system may administer another one.
    if running is None or "BANKSMAN_NATS__URL" in os.environ:
        budget = StorageBudget(settings.operator.storage_bytes)
        return BrokerAccess(settings.nats, settings.operator.run_nkey_seed_file, budget)
    nats = NatsSettings(
        url=running.nats_url,
        monitoring_url=running.monitoring_url,
        nkey_seed_file=seed_file(data.keys, users.OPERATOR),
        connect_timeout_s=_CONNECT_TIMEOUT_S,
    )
    return BrokerAccess(nats, seed_file(data.keys, users.OPERATOR_FILES), StorageBudget.of_disk(data.nats))


def provision_streams(data_dir: Path | None, *, as_json: bool) -> Exit:
    """Create missing streams and consumers and update those whose settings differ."""
    done = asyncio.run(broker_access(data_dir).in_each(provision))
    _print("done", done, as_json=as_json, empty="nothing to do")
    return Exit.OK


def check_streams(data_dir: Path | None, *, as_json: bool) -> Exit:
    """Print streams, consumers and server settings that are missing or weaker than required."""
    findings = asyncio.run(broker_access(data_dir).in_each(verify))
    _print("finding", findings, as_json=as_json, empty="streams are as strong as required")
    return Exit.CRITICAL if findings else Exit.OK


def _print(name: str, lines: list[str], *, as_json: bool, empty: str) -> None:
    for line in lines:
        output.print_json({name: line}) if as_json else output.print_line(line)
    if not lines and not as_json:
        output.print_line(empty)
