"""`banksman streams`: create, update and check streams and consumers."""

from __future__ import annotations

import asyncio
from pathlib import Path

from banksman.cli import output
from banksman.cli.operator.access import broker_access
from banksman.cli.output import Exit
from banksman.deployment.streams import provision, verify


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
