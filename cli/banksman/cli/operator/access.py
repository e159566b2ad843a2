"""The broker that operator commands work on, and how they connect to it."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import Field

from banksman.bus.connection import NatsSettings
from banksman.cli.broker.access import BrokerAccess
from banksman.cli.broker.keys import seed_file
from banksman.cli.state import DataDir
from banksman.deployment import users
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
    """Settings of the operator commands."""

    nats: NatsSettings = NatsSettings()
    operator: OperatorSection = OperatorSection()


def broker_access(data_dir: Path | None) -> BrokerAccess:
    """Return the access to the system that runs in the data directory, otherwise to the one in the settings.

    Raises:
        BadInput: a setting is invalid.
    """
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
