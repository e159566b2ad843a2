from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the measurements."""

    in_flight: tuple[int, ...] = (1, 16, 64)
    """Runs in flight."""
    counted_runs: int = 20
    """Sequential runs whose messages are counted."""
    seconds: float = 8.0
    """Seconds of each period under load."""
    periods: int = 8
    """Consecutive periods under load whose first and last one are compared."""
    agents: tuple[int, ...] = (1, 4, 16)
    """Numbers of agents whose cost per run is compared."""
    starts: int = 3
    """Warm starts."""
    idle_s: float = 15.0
    """Seconds for which an idle system is measured."""
    websockets: int = 5_000
    """Idle open websockets."""
    viewers: int = 100
    """Websockets that show one conversation."""
    requests: int = 200
    """Streamed requests through the passthrough endpoint, and as many directly to the model server."""


SHORT = Sizes(
    in_flight=(2,),
    counted_runs=2,
    seconds=0.5,
    periods=2,
    agents=(1,),
    starts=1,
    idle_s=0.5,
    websockets=20,
    viewers=3,
    requests=5,
)
"""Sizes for a quick check that all rows work, too small for a measurement."""
