"""Unknown outcomes in a recording, and for each the fault that made it necessary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.history.folded import Call, Folded
from tests.support.history.records import Began, Fault, Outage

SURVIVED_S = 9.0
"""Seconds for which the broker, or the connection of a runner, may be silent: the lease of the runner
outlives them, see docs/decisions/0020. The lease ends 11 s after its last renewal, which may be a second old
when the silence begins; after it, the broker takes half a second to store the messages that waited."""
RECONNECTED_S = 1.0
"""Seconds in which a process reconnects: a shorter return of the broker ends no outage."""
AFTER_S = 30.0
"""Seconds after a fault within which an owner declares the outcomes of the calls that it ended."""
LONG_S = 60.0
"""Seconds of a fault for which a run may reach its time limit, which is five minutes."""
_HOLDERS = ("tool-runner", "ledger", "workflows")
"""Processes that execute calls."""
_DEADLY = ("kill", "freeze", "restart", "cut")


@dataclass(frozen=True)
class UnknownOutcome:
    """A call that ended as `unknown_outcome`."""

    call_id: str
    tool: str
    reason: str
    """The text of the result."""
    cause: str | None
    """The fault that made it necessary; None if none did."""


def unknown_outcomes(history: Folded) -> list[UnknownOutcome]:
    """Return the calls with an unknown outcome."""
    faults = list(_faults(history))
    return [
        UnknownOutcome(
            call.call_id, str(call.requested.data.get("name")), _reason(call), _cause(call, faults)
        )
        for call in history.calls.values()
        if call.error_kind == "unknown_outcome"
    ]


def needless_timeouts(history: Folded) -> list[str]:
    """Return the runs that reached their time limit although no fault was long: something hung."""
    if any(outage.seconds >= LONG_S for outage in history.of(Outage)):
        return []
    ended = {run.run_id: run.ends[0].data.get("status") for run in history.runs.values() if run.ends}
    return [run_id for run_id, status in ended.items() if status == "timed_out"]


def _faults(history: Folded) -> Iterator[tuple[float, float, str]]:
    """Yield the begin, the end (seconds since 1970) and the name of each fault that may end a command."""
    origin = next((line.at for line in history.of(Began)), 0.0)
    for fault in history.of(Fault):
        if fault.target.startswith(_HOLDERS) and fault.what.startswith(_DEADLY):
            yield origin + fault.t, origin + fault.t, f"{fault.what} {fault.target}"
    for begin, end, target in _silences(history):
        if end - begin >= SURVIVED_S and target.startswith(("nats", *_HOLDERS)):
            yield origin + begin, origin + end, f"{target} was away for {end - begin:.1f} s"


def _silences(history: Folded) -> Iterator[tuple[float, float, str]]:
    """Yield the outages of each target, those with a short return between them as one."""
    open_ones: dict[str, tuple[float, float]] = {}
    for outage in sorted(history.of(Outage), key=lambda outage: outage.t):
        begin, target = outage.t - outage.seconds, outage.target
        if target in open_ones:
            earlier, ended = open_ones[target]
            if begin - ended < RECONNECTED_S:
                begin = earlier
            else:
                yield earlier, ended, target
        open_ones[target] = (begin, outage.t)
    yield from ((begin, end, target) for target, (begin, end) in open_ones.items())


def _cause(call: Call, faults: list[tuple[float, float, str]]) -> str | None:
    begun, ended = call.requested.ts, call.results[0].ts
    for begin, end, name in faults:
        if begin <= ended and begun <= end + AFTER_S:
            return name
    return None


def _tool(call: Call) -> str:
    return str(call.requested.data.get("name"))


def _reason(call: Call) -> str:
    return str(call.results[0].data.get("error") or "")
