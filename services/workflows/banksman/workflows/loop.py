"""The loop of a workflow run: ask the function, settle its calls, ask again, until the run ends."""

from __future__ import annotations

from typing import assert_never

from banksman.runs.approvals import withdraw
from banksman.runs.owner import Ownership
from banksman.runs.settle import Settlement
from banksman.runs.steps import Ask, Idle, Park, Record, Settle, Withdraw, next_step
from banksman.workflows.performance import Performance


async def drive(owned: Ownership, performance: Performance) -> None:
    """Take a claimed workflow run to its end.

    Raises:
        Fenced: a higher claim owns the run; the work message is neither acked nor given back.
    """
    settlement = Settlement.of(owned)
    while owned.holds:
        step = next_step(owned.state, owned.ports.clock.now())
        match step:
            case Ask():
                await owned.commit(await performance.next_events())
            case Settle():
                await settlement.settle(step)
            case Withdraw():
                await withdraw(owned)
            case Record() | Park() | Idle():
                await owned.commit(lambda _: ())
            case _:
                assert_never(step)
