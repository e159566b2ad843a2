"""The loop of an owner: the next step of its run, until the run ends or waits for a person."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import assert_never

from banksman.contracts.errors import Refused
from banksman.runs.approvals import withdraw
from banksman.runs.owner import Ownership, ask
from banksman.runs.settle import Settlement
from banksman.runs.steps import Ask, Idle, Park, Record, Settle, Withdraw, next_step

logger = logging.getLogger(__name__)

Answer = Callable[[Ownership], Awaitable[None]]
"""Asks what the run goes by, a model or a function, and commits what comes of it."""


async def drive(owned: Ownership, answer: Answer) -> None:
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
            await _go_on(owned, settlement, answer)
        except Refused as pause:
            logger.info("%s: holding on: %s", owned.state.conversation_id, pause)
            await owned.hold_on(pause)
            settlement, asked = Settlement.resumed(owned), False


async def _go_on(owned: Ownership, settlement: Settlement, answer: Answer) -> None:
    step = next_step(owned.state, owned.ports.clock.now())
    match step:
        case Ask():
            await answer(owned)
        case Settle():
            await settlement.settle(step)
        case Withdraw():
            await withdraw(owned)
        case Record() | Park() | Idle():
            await owned.commit(lambda _: ())
        case _:
            assert_never(step)
