"""Hours of ordinary traffic: memory, open files and work queues must not grow. Then a gateway is flooded.

python -m tests.support.chaos.soak --duration 28800
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression, mean

from banksman.bus.names import RESULTS, RUNS, WORKFLOWS
from banksman.deployment.users import OPERATOR, OPERATOR_FILES
from tests.support.chaos.canaries import streams
from tests.support.chaos.fleet import Fleet
from tests.support.chaos.verdict import under_traffic
from tests.support.floods import flood_all, large_text, many_values, message
from tests.support.history.records import Fault, Recording
from tests.support.model_server import ModelServer
from tests.support.parked import resident_bytes
from tests.support.polling import eventually, scripted_delay

SAMPLE_EVERY_S = 20.0
RESTART_EVERY_S = 3600.0
WARM_UP = 0.2
"""Share of a process's first samples to ignore: it imports modules and fills its caches."""
MAX_GROWTH = 0.01
"""Permitted growth of memory per hour, as a share of its size."""
FLOOD_S = 8.0
KEPT = 1.3
"""Permitted memory of a gateway after floods, divided by that before."""
RETURNED_S = 25.0
"""Seconds until it is back."""
_PAGE_BYTES = 4096
_QUEUES = (RUNS, WORKFLOWS, RESULTS)
"""Streams that hold only work in progress; the others store what users did, up to their `max_bytes`."""


@dataclass(frozen=True)
class Sample:
    """The resources of a process at one moment."""

    hours: float
    rss_bytes: int
    open_files: int


@dataclass
class Soak:
    """The samples of every process, separately for each start."""

    processes: dict[tuple[str, int], list[Sample]] = field(
        default_factory=dict[tuple[str, int], list[Sample]]
    )
    streams: dict[str, list[tuple[float, int]]] = field(default_factory=dict[str, list[tuple[float, int]]])
    """Hours since the start, and bytes, of each stream, bucket and object store."""
    _began: float = field(default_factory=time.monotonic)

    def sample(self, fleet: Fleet) -> None:
        """Sample every process once."""
        for member in fleet.members.values():
            if member.pid is not None:
                samples = self.processes.setdefault((member.name, member.starts), [])
                samples.append(_sample(member.pid, (time.monotonic() - self._began) / 3600))

    async def sample_streams(self, fleet: Fleet) -> None:
        """Sample every stream of both accounts once."""
        hours = (time.monotonic() - self._began) / 3600
        for user in (OPERATOR, OPERATOR_FILES):
            async with await fleet.broker.connect(user) as bus:
                for stream in await streams(bus):
                    sizes = self.streams.setdefault(str(stream["config"]["name"]), [])
                    sizes.append((hours, int(stream["state"]["bytes"])))

    @property
    def left_in_queues(self) -> dict[str, int]:
        """Return the bytes in each queue at the last sample, except empty queues."""
        last = {name: sizes[-1][1] for name, sizes in self.streams.items() if name in _QUEUES}
        return {name: size for name, size in last.items() if size}

    def growth(self, process: tuple[str, int]) -> tuple[float, float]:
        """Return the growth of memory per hour as a share, and of open files per hour."""
        samples = self.processes[process]
        settled = samples[int(len(samples) * WARM_UP) :]
        memory = _slope((one.hours, one.rss_bytes) for one in settled)
        files = _slope((one.hours, one.open_files) for one in settled)
        return memory / mean(one.rss_bytes for one in settled), files

    def __str__(self) -> str:
        rows: list[str] = []
        for (name, start), samples in self.processes.items():
            if len(samples) < 3:
                continue
            memory, files = self.growth((name, start))
            last = samples[-1]
            size = f"{last.rss_bytes / 2**20:.0f} MiB, {last.open_files} files"
            rows.append(f"{name:15} start {start}: {size}; {memory:+.1%} and {files:+.1f} files an hour")
        for name, sizes in sorted(self.streams.items()):
            if len(sizes) > 1:
                growth = _slope(sizes) / 2**20
                rows.append(f"{name:15} {sizes[-1][1] / 2**20:.2f} MiB; {growth:+.2f} MiB an hour")
        return "\n".join([*rows, f"left in queues: {self.left_in_queues or 'nothing'}"])


async def soak(directory: Path, *, seed: int, duration_s: float, rate: float) -> tuple[str, bool]:
    """Let users use a system, and restart it every hour; return the report, and whether all checks passed."""
    measured = Soak()

    async def sample_periodically(fleet: Fleet, recording: Recording) -> None:
        ends = time.monotonic() + duration_s
        restart_at = time.monotonic() + RESTART_EVERY_S
        while time.monotonic() < ends:
            await scripted_delay(min(SAMPLE_EVERY_S, duration_s / 10))
            measured.sample(fleet)
            await measured.sample_streams(fleet)
            if time.monotonic() > restart_at:
                restart_at += RESTART_EVERY_S
                await _restart_all(fleet, recording)

    async with ModelServer.running() as model, Fleet(directory, model.url) as fleet:
        verdict = await under_traffic(fleet, model, seed, rate, sample_periodically)
        await measured.sample_streams(fleet)
        flooded, is_back = await _after_floods(fleet)
    grown = duration_s >= RESTART_EVERY_S and any(
        measured.growth(process)[0] > MAX_GROWTH
        for process, samples in measured.processes.items()
        if len(samples) > 60
    )
    return f"{verdict}\n{measured}\n{flooded}", verdict.good and not grown and is_back


async def _after_floods(fleet: Fleet) -> tuple[str, bool]:
    """Flood a gateway three times; return the report, and whether its memory is back afterwards."""
    pid, port = fleet["gateway-1"].pid, int(fleet.urls[0].rpartition(":")[2])
    assert pid is not None
    before = resident_bytes(pid)
    frames = (large_text(), many_values(), large_text())
    hellos = [message(type="hello")]
    most = max([await flood_all(port, pid, hellos, frame, FLOOD_S) for frame in frames])
    begun = time.monotonic()
    with contextlib.suppress(TimeoutError):
        await eventually(lambda: resident_bytes(pid) < KEPT * before, RETURNED_S)
    after, took_s = resident_bytes(pid), time.monotonic() - begun
    sizes = " -> ".join(f"{size / 2**20:.0f}" for size in (before, most, after))
    return f"gateway before, during and {took_s:.0f} s after floods: {sizes} MiB", after < KEPT * before


async def _restart_all(fleet: Fleet, recording: Recording) -> None:
    for name, member in fleet.members.items():
        if name != "nats":
            recording.add(Fault(what="restart", target=name))
            await member.restart()
    await fleet.ready()


def _sample(pid: int, hours: float) -> Sample:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return Sample(hours, pages * _PAGE_BYTES, len(list(Path(f"/proc/{pid}/fd").iterdir())))


def _slope(points: Iterable[tuple[float, float]]) -> float:
    hours, values = zip(*points, strict=True)
    return linear_regression(hours, values).slope


def main() -> int:
    """Run the soak test; return 1 if a promise was broken or something grew."""
    parser = argparse.ArgumentParser(description="Hours of ordinary traffic.")
    parser.add_argument("--duration", type=float, default=3600.0, help="seconds (default %(default)s)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1_000_000))
    parser.add_argument("--rate", type=float, default=5.0, help="runs started a second (default %(default)s)")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="banksman-soak-"))
    work = soak(directory, seed=options.seed, duration_s=options.duration, rate=options.rate)
    report, good = asyncio.run(work)
    sys.stdout.write(f"seed {options.seed}\n{report}\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
