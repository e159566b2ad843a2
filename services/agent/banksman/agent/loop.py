"""The agent loop: model, calls, results, model again, until the run ends or waits for a person."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from banksman.bus.errors import MessageTooLarge
from banksman.contracts.errors import ErrorCode
from banksman.runs import driving
from banksman.runs.owner import Build, Ownership
from banksman.runs.steps import Ending, finished

Think = Callable[[Ownership], Awaitable[Build]]
"""One model request: returns what its outcome becomes in the log."""


async def drive(owned: Ownership, think: Think) -> None:
    """Take a claimed run as far as it goes without a person.

    Raises:
        Fenced, Refused: as of `driving.drive`.
    """

    async def answer(owned: Ownership) -> None:
        await _record(owned, await think(owned))

    await driving.drive(owned, answer)


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
