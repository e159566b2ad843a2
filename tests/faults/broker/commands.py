"""The command `banksman` as the operator of a fleet runs it."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass

from banksman.cli.broker.accounts import seed_file
from banksman.deployment.users import OPERATOR, OPERATOR_FILES
from tests.support.chaos.fleet import Fleet
from tests.support.timeouts import deadline

TIMEOUT_S = 120.0
"""Seconds until a command must have ended, on a busy machine."""


@dataclass(frozen=True)
class Ended:
    """The result of a command."""

    code: int
    out: str
    err: str


async def banksman(fleet: Fleet, *arguments: str, **more: str) -> Ended:
    """Run a command as the operator of this system, with `more` environment variables."""
    keys = fleet.nats.data.keys
    prefix = "BANKSMAN_NATS__"
    settings = {
        f"{prefix}URL": fleet.nats.url,
        f"{prefix}MONITORING_URL": fleet.nats.monitoring_url,
        f"{prefix}NKEY_SEED_FILE": str(seed_file(keys, OPERATOR)),
        "BANKSMAN_OPERATOR__RUN_NKEY_SEED_FILE": str(seed_file(keys, OPERATOR_FILES)),
    }
    settings |= fleet.broker.settings_for(settings)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BANKSMAN_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "banksman.cli", *arguments),
        env={**kept, **settings, **more},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with deadline(f"banksman {' '.join(arguments)} did not end", TIMEOUT_S):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return Ended(process.returncode or 0, out.decode(), err.decode())
