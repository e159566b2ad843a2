"""The loop of a workflow run: ask the function, settle its calls, ask again, until the run ends."""

from __future__ import annotations

import logging

from banksman.contracts.errors import CallerMistake
from banksman.runs import driving
from banksman.runs.owner import Ownership
from banksman.workflows.performance import Performance

logger = logging.getLogger(__name__)


async def drive(owned: Ownership, performance: Performance) -> None:
    """Take a claimed workflow run to its end.

    Raises:
        Fenced, Refused: as of `driving.drive`.
    """

    async def answer(owned: Ownership) -> None:
        await _record(owned, performance)

    await driving.drive(owned, answer)


async def _record(owned: Ownership, performance: Performance) -> None:
    """Commit what the function wishes for; what the log cannot hold ends the run, for it would come again."""
    try:
        await owned.commit(await performance.next_events())
    except (CallerMistake, ValueError) as error:
        logger.warning("%s: not recorded: %s", owned.state.conversation_id, error)
        await owned.commit(performance.unrecordable(error))
    performance.recorded()
