"""The loop of a workflow run: ask the function, settle its calls, ask again, until the run ends."""

from __future__ import annotations

import logging
from typing import assert_never

from banksman.contracts.errors import CallerMistake, Refused
from banksman.runs.approvals import withdraw
from banksman.runs.owner import Ownership
from banksman.runs.settle import Settlement
from banksman.runs.steps import Ask, Idle, Park, Record, Settle, Withdraw, next_step
from banksman.workflows.performance import Performance

logger = logging.getLogger(__name__)


async def drive(owned: Ownership, performance: Performance) -> None:
    """Take a claimed workflow run to its end.

    Raises:
        Fenced: a higher claim owns the run; the work message is neither acked nor given back.
        Refused: the run has ended, and something behind that is not done yet.
    """
    settlement = Settlement.of(owned)
    while owned.holds:
        try:
            await _go_on(owned, settlement, performance)
        except Refused as pause:
            logger.info("%s: holding on: %s", owned.state.conversation_id, pause)
            await owned.hold_on(pause)
            settlement = Settlement.resumed(owned)


async def _go_on(owned: Ownership, settlement: Settlement, performance: Performance) -> None:
    step = next_step(owned.state, owned.ports.clock.now())
    match step:
        case Ask():
            await _record(owned, performance)
        case Settle():
            await settlement.settle(step)
        case Withdraw():
            await withdraw(owned)
        case Record() | Park() | Idle():
            await owned.commit(lambda _: ())
        case _:
            assert_never(step)


async def _record(owned: Ownership, performance: Performance) -> None:
    """Commit what the function wishes for; what the log cannot hold ends the run, for it would come again."""
    try:
        await owned.commit(await performance.next_events())
    except (CallerMistake, ValueError) as error:
        logger.warning("%s: not recorded: %s", owned.state.conversation_id, error)
        await owned.commit(performance.unrecordable(error))
    performance.recorded()
