"""A supervised run with one resource that outlives processes; test_killed_runs.py starts and kills it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path

from tests.support.chaos.network import cable, host_address
from tests.support.supervised import cleaned_up_by, supervise
from tests.support.volumes import Volume


async def hold_file(directory: Path) -> None:
    """Stay until killed, with a cleanup command that creates the file `cleaned`."""
    with cleaned_up_by(["touch", str(directory / "cleaned")]):
        await _stay()


async def hold_network(number: Path) -> None:
    """Stay until killed, with a network namespace, its link, a rule and an address."""
    async with host_address(int(number.name)), cable(int(number.name), 1) as link:
        await link.lose("in")
        await _stay()


async def hold_volume(directory: Path) -> None:
    """Stay until killed, with a mounted volume on a loop device."""
    with Volume.made(directory / "disk", directory / "volume", megabytes=4):
        await _stay()


async def _stay() -> None:
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


HOLDERS: dict[str, Callable[[Path], Coroutine[object, object, None]]] = {
    "file": hold_file,
    "network": hold_network,
    "volume": hold_volume,
}

if __name__ == "__main__":
    supervise()
    if len(sys.argv) > 1:
        asyncio.run(HOLDERS[sys.argv[1]](Path(sys.argv[2])))
