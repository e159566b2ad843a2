"""Measure the time from a cancel to the end of all processes of the command: at most 2 s at p99, none left.

Run: python benchmarks/cancels.py [--cancels 120]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

import httpx
from tests.support.chaos.fleet import Fleet
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import ScriptedModel, scripted_model

LIMIT_S = 2.0
MARK_FROM = 700_000
"""Each command sleeps for a different number of seconds, which identifies its processes."""
STUBBORN: Mapping[str, str] = {
    "ignores TERM": "trap '' TERM INT HUP; while :; do sleep {mark}; done",
    "leaves its session": "setsid sleep {mark} & setsid setsid sleep {mark} & wait",
    "reads without input": "mkfifo pipe; sleep {mark} & cat pipe",
    "forks": "f() {{ sleep {mark} & f | f & }}; f; wait",
    "plain": "sleep {mark}",
}


def living(mark: str) -> int:
    """Return the number of processes with `mark` as an argument."""
    found = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                found += mark.encode() in (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
    return found


async def until_living(mark: str, wanted: bool) -> None:
    async with asyncio.timeout(60):
        # The kernel notifies only the parent of a process's end, so this process polls.
        while (living(mark) > 0) is not wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def cancel(
    http: httpx.AsyncClient, model: ScriptedModel, number: int, kind: str
) -> tuple[float, float]:
    """Start a command and cancel it; return the seconds until its processes ended, and until its run
    ended."""
    mark = str(MARK_FROM + number)
    call = ScriptedCall(name="bash", arguments={"command": STUBBORN[kind].format(mark=mark)})
    name = model.play(f"cancel-{number}", [ScriptedReply(tool_calls=(call,)), ScriptedReply(text="Done.")])
    body = {"model": name, "tools": {"enabled": True}, "approval_policy": [{"action": "auto"}]}
    created = await http.post("/context/assistants", json=body)
    assert created.status_code == 201, created.text
    assistant = created.json()["id"]
    made = await http.post("/context/conversations", json={"assistant": assistant})
    path = f"/context/conversations/{made.json()['conversation_id']}/runs"
    run_id = (await http.post(path, json={"content": "go"})).json()["run_id"]
    await until_living(mark, True)
    begun = time.perf_counter()
    await http.post(f"/context/runs/{run_id}/cancel", json={})
    await until_living(mark, False)
    processes_s = time.perf_counter() - begun
    ended = (await http.get(f"/context/runs/{run_id}", params={"wait_s": 30})).json()
    assert ended["status"] == "cancelled", ended
    return processes_s, time.perf_counter() - begun


async def main(cancels: int) -> int:
    kinds = list(STUBBORN)
    with scripted_model() as model, tempfile.TemporaryDirectory() as place:
        async with (
            Fleet(Path(place), model.url, agents=1, gateways=1, runners=1) as fleet,
            httpx.AsyncClient(base_url=fleet.urls[0], timeout=60) as http,
        ):
            took = [
                await cancel(http, model, number, kinds[number % len(kinds)]) for number in range(cancels)
            ]
            left = sum(living(str(MARK_FROM + number)) for number in range(cancels))
    processes, ended = (sorted(times) for times in zip(*took, strict=True))
    p99 = processes[min(len(processes) - 1, int(len(processes) * 0.99))]
    p50, p95, longest = processes[len(processes) // 2], processes[int(len(processes) * 0.95)], processes[-1]
    print(f"{cancels} cancels of {len(kinds)} kinds of command; {left} processes left")
    print(f"processes ended: p50 {p50:.3f} s, p95 {p95:.3f} s, p99 {p99:.3f} s, longest {longest:.3f} s")
    print(f"run ended: p50 {ended[len(ended) // 2]:.3f} s, longest {ended[-1]:.3f} s")
    return 0 if p99 <= LIMIT_S and not left else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cancels", type=int, default=120)
    sys.exit(asyncio.run(main(parser.parse_args().cancels)))
