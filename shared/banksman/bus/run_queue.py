"""The work queues of runs and workflows. Fixed message ids make repeated requests safe."""

from __future__ import annotations

from banksman.bus.connection import Bus
from banksman.bus.publish import durable
from banksman.contracts import subjects
from banksman.contracts.registry import StartWorkflow
from banksman.contracts.work import ResumeRun, RunSignal, StartRun


class RunQueue:
    """Publishes work for agents and for the workflows service."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def publish(self, work: StartRun | ResumeRun) -> None:
        """Store a start under the message id `start:{run}`, or a resume under `resume:{cause}`.

        Raises:
            Overloaded, MessageTooLarge, Unavailable: As `durable`.
        """
        msg_id = f"start:{work.run_id}" if isinstance(work, StartRun) else f"resume:{work.cause}"
        subject = subjects.run_work(work.tenant, work.conversation_id)
        await durable(self._bus, subject, _encoded(work), msg_id=msg_id)

    async def signal(self, signal: RunSignal, request_id: str) -> None:
        """Store a signal under the message id `signal:{request}`, and wake the owner of the run.

        Raises:
            Overloaded, MessageTooLarge, Unavailable: As `durable`.
        """
        subject = subjects.run_signal(signal.tenant, signal.conversation_id)
        await durable(self._bus, subject, _encoded(signal), msg_id=f"signal:{request_id}")
        await self.wake_owner(signal.tenant, signal.conversation_id)

    async def start_workflow(self, work: StartWorkflow) -> None:
        """Store the start of a workflow under the message id `workflow:{run}`.

        Raises:
            Overloaded, MessageTooLarge, Unavailable: As `durable`.
        """
        subject = subjects.workflow_run(work.workflow, work.tenant, work.conversation_id)
        await durable(self._bus, subject, _encoded(work), msg_id=f"workflow:{work.run_id}")

    async def wake_owner(self, tenant: str, conversation_id: str) -> None:
        """Wake the owner of a run.

        The message may be lost: the owner also reads the log when its wait times out.
        """
        await self._bus.publish(subjects.cancel_hint(tenant, conversation_id), b"")


def _encoded(work: StartRun | ResumeRun | RunSignal | StartWorkflow) -> bytes:
    return work.model_dump_json(by_alias=True).encode()
