"""The agent loop: model, calls, results, model again, until the run ends or waits for a person."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import assert_never

from banksman.bus.errors import MessageTooLarge
from banksman.contracts.errors import ErrorCode, Refused
from banksman.runs.approvals import withdraw
from banksman.runs.owner import Build, Ownership, ask
from banksman.runs.settle import Settlement
from banksman.runs.steps import Ask, Ending, Idle, Park, Record, Settle, Withdraw, finished, next_step

logger = logging.getLogger(__name__)

Think = Callable[[Ownership], Awaitable[Build]]
"""One model request: returns what its outcome becomes in the log."""


async def drive(owned: Ownership, think: Think) -> None:
    """Take a claimed run as far as it goes without a person.

    When this returns, the log shows the run parked or ended, and the work message may be acked.

    Raises:
        Fenced: a higher claim owns the run; the work message is neither acked nor given back.
        Refused: the run is parked or ended, and something behind that is not done yet.
    """
    settlement, asked = Settlement.of(owned), False
    while owned.holds:
        try:
            if not asked:
                # A claim, or a commit whose answer was lost, may have left its question out.
                await ask(owned.ports, owned.state)
                asked = True
            await _go_on(owned, settlement, think)
        except Refused as pause:
            logger.info("%s: holding on: %s", owned.state.conversation_id, pause)
            await owned.hold_on(pause)
            settlement, asked = Settlement.resumed(owned), False


async def _go_on(owned: Ownership, settlement: Settlement, think: Think) -> None:
    step = next_step(owned.state, owned.ports.clock.now())
    match step:
        case Ask():
            await _record(owned, await think(owned))
        case Settle():
            await settlement.settle(step)
        case Withdraw():
            await withdraw(owned)
        case Record() | Park() | Idle():
            await owned.commit(lambda _: ())
        case _:
            assert_never(step)


async def _record(owned: Ownership, build: Build) -> None:
    """Commit a reply; one that does not fit the log ends the run, for another such would follow it."""
    try:
        await owned.commit(build)
    except MessageTooLarge as error:
        said = (
            f"The model's reply and what is shown of its calls take {error.size} bytes: too many for the log."
        )
        ending = Ending("failed", ErrorCode.TOO_LARGE, said, "not_executed")
        await owned.commit(lambda _: (finished(owned.run, "failed", said, ending),))
