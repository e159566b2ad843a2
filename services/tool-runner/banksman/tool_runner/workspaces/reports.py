"""Reports of a runner to the platform about its workspaces."""

from __future__ import annotations

from pydantic import ValidationError

from banksman.bus.connection import Bus
from banksman.contracts import subjects
from banksman.contracts.errors import Unavailable
from banksman.contracts.workspaces import WorkspaceReport, WorkspaceReportReply

REPLY_S = 5.0


class Reports:
    """The only way by which a runner reads or changes the platform's record of its workspaces."""

    def __init__(self, bus: Bus, runner: str) -> None:
        self._bus = bus
        self._runner = runner

    async def send(self, tenant: str, conversation_id: str, report: WorkspaceReport) -> WorkspaceReportReply:
        """Send a report and return the resulting state of the platform's record.

        Raises:
            Unavailable: no reply within `REPLY_S`, or a reply that is not valid.
        """
        subject = subjects.workspace_report(self._runner, tenant, conversation_id)
        reply = await self._bus.request(subject, report.model_dump_json().encode(), REPLY_S)
        try:
            return WorkspaceReportReply.model_validate_json(reply)
        except ValidationError as error:
            raise Unavailable("the reply to a workspace report is not valid") from error
