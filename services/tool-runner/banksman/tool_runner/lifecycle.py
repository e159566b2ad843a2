"""The life cycle of a connected runner: take the lease, serve, drain, snapshot, release."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import dataclass

from banksman.contracts.calls import DRAINING
from banksman.contracts.errors import BanksmanError
from banksman.runs.runners.lease import Lease
from banksman.runtime.background import BackgroundTask
from banksman.runtime.service import ServiceProcess
from banksman.tool_runner.worker import Worker
from banksman.tool_runner.workspaces.scheduler import SnapshotScheduler

EXIT_WITHIN_S = 5
"""Seconds until the kernel ends a process that lost its lease, and its sandboxes with it."""


@dataclass
class Lifecycle:
    """Runs one runner process from its lease to its end."""

    lease: Lease
    worker: Worker
    scheduler: SnapshotScheduler
    problem: str | None
    """Why the sandbox failed its self-test; None if it passed."""
    drain_s: float
    """Seconds that running calls get at the end before they are killed."""

    async def serve(self, process: ServiceProcess, tasks: asyncio.TaskGroup) -> None:
        """Serve until `process.stop`, then end in an order that loses no work.

        Raises:
            Unavailable: the lease could not be stored.
        """
        await self.lease.take()
        scheduling = process.health.background.run("workspaces", self.scheduler.run)
        # Not a supervised background task: without a lease the process must end.
        renewing = tasks.create_task(self._renew_lease(scheduling), name="lease")
        process.health.checks |= {"sandbox": self._sandbox_problem, "lease": self._lease_problem}
        process.ready()
        await process.stop.wait()
        self.lease.withdraw(DRAINING)
        await self.worker.drain(self.drain_s)
        await scheduling.stop()
        # The lease is renewed until the last snapshot is stored: without it, another runner could take over.
        await self.scheduler.snapshot_all()
        await self.lease.release()
        renewing.cancel()
        await asyncio.wait([renewing])

    async def _renew_lease(self, scheduling: BackgroundTask) -> None:
        """Renew the lease. If it is lost, end every call and then the process.

        Raises:
            LeaseLost: the lease was not renewed in time.
        """
        try:
            await self.lease.keep()
        except BanksmanError:
            # The default action of SIGALRM ends the process even if its event loop is blocked.
            signal.alarm(EXIT_WITHIN_S)
            # Another runner may have the workspaces now.
            scheduling.cancel()
            await self.worker.fence()
            raise

    async def _sandbox_problem(self) -> str | None:
        return self.problem

    async def _lease_problem(self) -> str | None:
        return None if self.lease.holds else "the lease is not renewed"
