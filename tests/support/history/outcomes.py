"""Unknown outcomes in a recording, and for each the fault that made it necessary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.history.folded import Call, Folded
from tests.support.history.records import Began, Fault, Outage

SURVIVED_S = 8.0
"""Seconds for which the broker, or the connection of a runner, may be silent: the lease of the runner
outlives them, see docs/decisions/0020."""
AFTER_S = 30.0
"""Seconds after a fault within which an owner declares the outcomes of the calls that it ended."""
_HOLDERS = ("tool-runner", "ledger")
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


def _faults(history: Folded) -> Iterator[tuple[float, float, str]]:
    """Yield the begin, the end (seconds since 1970) and the name of each fault that may end a command."""
    origin = next((line.at for line in history.of(Began)), 0.0)
    for fault in history.of(Fault):
        if fault.target.startswith(_HOLDERS) and fault.what.startswith(_DEADLY):
            yield origin + fault.t, origin + fault.t, f"{fault.what} {fault.target}"
    for outage in history.of(Outage):
        if outage.seconds >= SURVIVED_S:
            end = origin + outage.t
            yield end - outage.seconds, end, f"{outage.target} was away for {outage.seconds:.1f} s"


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
