"""What a runner tells the platform of its workspaces, and asks about them."""

from __future__ import annotations

import asyncio
import logging

from pydantic import ValidationError

from banksman.bus.connection import Bus
from banksman.contracts import subjects
from banksman.contracts.errors import BanksmanError, Unavailable
from banksman.contracts.workspaces import WorkspaceReport, WorkspaceVerdict

logger = logging.getLogger(__name__)

ANSWER_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0


class Reports:
    """The one door that a runner has to the record of its workspaces."""

    def __init__(self, bus: Bus, runner: str) -> None:
        self._bus = bus
        self._runner = runner

    async def tell(self, tenant: str, conversation_id: str, report: WorkspaceReport) -> WorkspaceVerdict:
        """Report, and ask again for as long as nobody answers. A report may be repeated."""
        pause = _FIRST_PAUSE_S
        while True:
            try:
                return await self.ask(tenant, conversation_id, report)
            except BanksmanError as error:
                logger.warning("%s: not reported yet: %s", conversation_id, error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE_S)

    async def ask(self, tenant: str, conversation_id: str, report: WorkspaceReport) -> WorkspaceVerdict:
        """Report once.

        Raises:
            Unavailable: nobody answered, or not in our words.
        """
        subject = subjects.workspace_report(self._runner, tenant, conversation_id)
        answer = await self._bus.request(subject, report.model_dump_json().encode(), ANSWER_S)
        try:
            return WorkspaceVerdict.model_validate_json(answer)
        except ValidationError as error:
            raise Unavailable("the report was not understood") from error
