"""Requests of a runner to the platform: reports about its workspaces, and removals of its objects."""

from __future__ import annotations

from typing import Literal

from pydantic import ValidationError

from banksman.bus.connection import Bus
from banksman.bus.storage.objects import Objects
from banksman.contracts import subjects
from banksman.contracts.errors import Unavailable
from banksman.contracts.workspaces import (
    ObjectRemoval,
    ObjectRemovalReply,
    WorkspaceReport,
    WorkspaceReportReply,
)
from banksman.runtime.backoff import Backoff, retry

REPLY_S = 5.0
REPEATED_FOR_S = 15.0
"""Seconds for which a report that a call waits for is repeated. After a restart of the broker, runners may be
connected a second before the first agent."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 0.5
REMOVAL_REPLY_S = 10.0


class Reports:
    """The only way by which a runner reads or changes the platform's record of its workspaces."""

    def __init__(self, bus: Bus, runner: str) -> None:
        self._bus = bus
        self._runner = runner

    async def send(
        self, tenant: str, conversation_id: str, report: WorkspaceReport, *, repeats: bool = False
    ) -> WorkspaceReportReply:
        """Send a report and return the resulting state of the platform's record.

        With `repeats`, it is sent again for `REPEATED_FOR_S` until a reply arrives, which is safe: a report
        contains the current state.

        Raises:
            Unavailable: no valid reply in time.
        """
        if not repeats:
            return await self._send(tenant, conversation_id, report)
        return await retry(
            lambda: self._send(tenant, conversation_id, report),
            again=lambda error: isinstance(error, Unavailable),
            backoff=Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S),
            budget_s=REPEATED_FOR_S,
            failure=f"{tenant}/{conversation_id}: the report of its workspace has failed",
        )

    async def _send(self, tenant: str, conversation_id: str, report: WorkspaceReport) -> WorkspaceReportReply:
        subject = subjects.workspace_report(self._runner, tenant, conversation_id)
        payload = report.model_dump_json().encode()
        reply = await self._bus.request(subject, payload, REPLY_S, until_reconnect=True)
        try:
            return WorkspaceReportReply.model_validate_json(reply)
        except ValidationError as error:
            raise Unavailable("the reply to a workspace report is not valid") from error


def objects_of(bus: Bus, store: Literal["outputs", "workspaces"], runner: str) -> Objects:
    """Return a store with objects of a runner. Its permissions include no purge, so an agent removes them."""

    async def remove(name: str) -> None:
        request = ObjectRemoval(store=store, name=name)
        reply = await bus.request(
            subjects.object_removal(runner), request.model_dump_json().encode(), REMOVAL_REPLY_S
        )
        try:
            ObjectRemovalReply.model_validate_json(reply)
        except ValidationError as error:
            raise Unavailable(f"{store}/{name} was not removed: {reply[:200]!r}") from error

    return Objects(bus, store, remove=remove)
