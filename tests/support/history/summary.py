"""A summary of a recording in a few numbers."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from tests.support.history.folded import Folded
from tests.support.history.outcomes import unknown_outcomes
from tests.support.history.records import Began, Calm, Decide, Fault, Outage, Send


def summary(history: Folded) -> str:
    """Return a summary as lines of text."""
    faults = Counter(f"{fault.what} {fault.target}" for fault in history.of(Fault))
    kills = sum(count for name, count in faults.items() if name.startswith("kill "))
    ends = [run.ends[0] for run in history.runs.values() if run.ends]
    calm = next((line.t for line in history.of(Calm)), None)
    unknown = unknown_outcomes(history)
    unnecessary = sum(one.cause is None for one in unknown)
    kinds = Counter(call.error_kind for call in history.calls.values() if call.error_kind)
    repeated = Counter(line.problem or "no reply" for line in history.of(Send) if line.phase == "info")
    outages = [outage.seconds for outage in history.of(Outage)]
    rows = {
        "seed": next((line.seed for line in history.of(Began)), "none"),
        "requests": len({send.request_id for send in history.of(Send)}),
        "accepted runs": len(history.accepted),
        "accepted workflow runs": len(history.workflows),
        "terminal events": len(ends),
        "outcomes": _counted(Counter(str(end.data.get("status")) for end in ends)),
        "calls": f"{len(history.calls)}, of them with unknown outcome {len(unknown)}",
        "unnecessary unknown outcomes": f"{unnecessary}",
        "errors of calls": _counted(kinds) or "none",
        "requests repeated": _counted(repeated) or "none",
        "outages": f"{len(outages)}, the longest {max(outages, default=0.0):.1f} s",
        "effects": len(history.effects),
        "decisions": len({line.approval_id for line in history.of(Decide) if line.phase == "ok"}),
        "faults": f"{sum(faults.values())}, of them kills {kills}: {_counted(faults)}",
        "runs waiting after the faults": _backlog(history, [end.t for end in ends]),
        "last end after the faults": _after(calm, [end.t for end in ends]),
        "longest silence between ends": f"{_silence(history):.1f} s",
    }
    return "\n".join(f"{name + ':':30}{value}" for name, value in rows.items())


def _after(calm: float | None, ends: list[float]) -> str:
    return "none" if calm is None or not ends else f"{max(0.0, max(ends) - calm):.1f} s"


def _backlog(history: Folded, ends: list[float]) -> str:
    """Return how many runs waited when the faults ended, and the longest time after it without an end."""
    calm = next(iter(history.of(Calm)), None)
    if calm is None:
        return "none"
    after = (calm.t, *sorted(t for t in ends if t > calm.t))
    longest = max((later - earlier for earlier, later in pairwise(after)), default=0.0)
    return f"{calm.waiting}, the longest time without an end {longest:.1f} s"


def _silence(history: Folded) -> float:
    """Return the longest time in seconds in which no run ended."""
    times = sorted(run.ends[0].t for run in history.runs.values() if run.ends)
    return max((later - earlier for earlier, later in pairwise(times)), default=0.0)


def _counted(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counter.most_common())
