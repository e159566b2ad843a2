"""What a runner tells the platform of its workspaces, and asks about them."""

from __future__ import annotations

from pydantic import ValidationError

from banksman.bus.connection import Bus
from banksman.contracts import subjects
from banksman.contracts.errors import Unavailable
from banksman.contracts.workspaces import WorkspaceReport, WorkspaceReportReply

ANSWER_S = 5.0


class Reports:
    """The one door that a runner has to the record of its workspaces."""

    def __init__(self, bus: Bus, runner: str) -> None:
        self._bus = bus
        self._runner = runner

    async def ask(self, tenant: str, conversation_id: str, report: WorkspaceReport) -> WorkspaceReportReply:
        """Report, and hear what the record says then.

        Raises:
            Unavailable: nobody answered, or not in our words.
        """
        subject = subjects.workspace_report(self._runner, tenant, conversation_id)
        answer = await self._bus.request(subject, report.model_dump_json().encode(), ANSWER_S)
        try:
            return WorkspaceReportReply.model_validate_json(answer)
        except ValidationError as error:
            raise Unavailable("the report was not understood") from error
