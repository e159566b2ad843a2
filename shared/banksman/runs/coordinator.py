"""Coordinates the calls of an iteration: each gets one stored result, whatever happens to its runner."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from banksman.bus.storage.slots import AttemptSlots
from banksman.contracts.calls import CallFinished, CallRequest, CallStarted, SearchTarget
from banksman.contracts.errors import Poison
from banksman.contracts.mcp import mcp_server_of
from banksman.contracts.tools import ToolResult
from banksman.contracts.workspace_tools import BASH, WEB_SEARCH
from banksman.runs import call_attempt
from banksman.runs.call_attempt import CallAttempt
from banksman.runs.outcome import Ending, batches, completions, losses, questions, storable
from banksman.runs.owner import Ownership
from banksman.runs.ports import Placement
from banksman.runs.state import OpenCall
from banksman.runs.steps import ExecuteCalls, deadline_of


@dataclass
class ToolCallCoordinator:
    """The open calls of an owner, over as many rounds of `execute` as they take."""

    owned: Ownership
    calls: dict[str, CallAttempt] = field(default_factory=dict[str, CallAttempt])
    inherited: frozenset[str] = frozenset()
    """Ids of the calls that an earlier owner may have sent to a runner."""

    @classmethod
    def of(cls, owned: Ownership) -> ToolCallCoordinator:
        return cls.resumed(owned) if owned.took_over else cls(owned)

    @classmethod
    def resumed(cls, owned: Ownership) -> ToolCallCoordinator:
        """Return the coordinator of a run that was driven before, by another owner or until an error."""
        return cls(owned, inherited=frozenset(call.call.id for call in owned.run.open_calls))

    async def execute(self, step: ExecuteCalls) -> None:
        """Advance the calls of `step`, and commit the results that are available.

        Returns after a commit, or when something was stored that may change the next step.
        """
        results: list[ToolResult] = []
        wake = self.owned.ports.clock.now() + timedelta(seconds=call_attempt.REPEAT_S)
        for open_call in step.calls:
            outcome = await self._advance(
                self._attempt_of(open_call), step.ending, alone=len(step.calls) == 1
            )
            if isinstance(outcome, ToolResult):
                results.append(outcome)
            else:
                wake = min(wake, outcome)
        if results:
            # Committed without waiting for the other calls: a crash must not lose a result.
            await self._commit(results)
            return
        if step.ending is None:
            wake = min(wake, deadline_of(self.owned.run))
        await self.owned.wait(wake)

    def _attempt_of(self, open_call: OpenCall) -> CallAttempt:
        known = self.calls.get(open_call.call.id)
        if known is None:
            fresh = open_call.call.id not in self.inherited
            known = CallAttempt(open_call, open_call.attempt, fresh)
            if open_call.gate == "approved" and (approval := self.owned.run.approval) is not None:
                items = {item.tool_call_id: item for item in approval.request.items}
                known.approved = None if open_call.edited else items.get(open_call.call.id)
                known.approved_until = approval.request.expires_at
            self.calls[open_call.call.id] = known
        return known

    async def _advance(
        self, call: CallAttempt, ending: Ending | None, *, alone: bool
    ) -> ToolResult | datetime:
        """Act on a call until it has a result or must wait; return the result or the next step's time."""
        ports = self.owned.ports
        while True:
            slots = await self._read_slots(call)
            alive = await self._runner_alive(call, slots)
            now = ports.clock.now()
            match call_attempt.call_step(call, slots, runner_alive=alive, ending=ending, now=now):
                case call_attempt.Conclude(result):
                    return result
                case call_attempt.Wait(until):
                    return until
                case call_attempt.Dispatch():
                    await self._dispatch(call, alone=alone)
                case call_attempt.Void(moved):
                    await self._void(call, moved)
                case call_attempt.NextAttempt():
                    call.begin_next()
                case call_attempt.SendCancel(runner):
                    await ports.runners.cancel(runner, self.owned.state.tenant, call.attempt)
                    call.cancel_sent_at = now
                case call_attempt.Declare(result):
                    await self._declare(call, result)
                case call_attempt.GiveUp(reason, kind):
                    call.given_up, call.given_up_kind = reason, kind

    async def _read_slots(self, call: CallAttempt) -> AttemptSlots:
        ports, tenant = self.owned.ports, self.owned.state.tenant
        slots = await ports.notifications.slots(self.owned.state, call.attempt)
        # Notifications may be lost, and those for an earlier owner are not sent again. Then read the slots.
        if slots.finished is None and (not call.fresh or call.is_stale(ports.clock.now())):
            try:
                slots = await ports.slots.read(tenant, call.attempt)
            except Poison as poison:
                return self._unusable(call, poison.reason)
        if slots.finished is not None and slots.finished.result.tool_call_id != call.call_id:
            # A tool server may store any result under the name of its tenant.
            return self._unusable(call, "the stored result belongs to another call")
        if slots.finished is not None and slots.finished.result.asks and call.open_call.call.server:
            return self._unusable(call, "only the servers of runners may request a value from a user")
        if slots.started is not None and not slots.started.void and call.started_seen_at is None:
            call.started_seen_at = ports.clock.now()
        return slots

    def _unusable(self, call: CallAttempt, why: str) -> AttemptSlots:
        """Return slots in place of unreadable ones: the call ran, with an unknown outcome."""
        # The slots must stay: a runner that has not begun would find them free, and execute the call.
        call.fresh = False
        result = call_attempt.unknown_outcome(call.call_id, why)
        return AttemptSlots(finished=self._finished(call, result))

    async def _runner_alive(self, call: CallAttempt, slots: AttemptSlots) -> bool:
        started = slots.started
        if started is not None and started.runner is not None:
            return await self.owned.ports.runners.alive(Placement(started.runner, started.runner_epoch))
        if call.placement is not None:
            return await self.owned.ports.runners.alive(call.placement)
        return True

    async def _dispatch(self, call: CallAttempt, *, alone: bool) -> None:
        ports, state, tool_call = self.owned.ports, self.owned.state, call.open_call.call
        now = ports.clock.now()
        placement = call.placement
        # A live process that accepted the attempt keeps it: a tool server has several processes, and an
        # idempotent call that one of them executes would run in another one too.
        if not (call.accepted and placement and await ports.runners.alive(placement)):
            workspace = self.owned.workspace or state.conversation_id
            placement = await ports.runners.place(state.tenant, workspace, tool_call.server)
        if placement is None:
            call.repeat_at = now + timedelta(seconds=call_attempt.BUSY_S)
            call.no_runner_since = call.no_runner_since or now
            return
        if call.placement is not None and call.placement != placement and not await self._may_move(call):
            return
        # Recorded before the request is sent: the process may have the call even if its reply is lost.
        call.placement = placement
        call.requested_at = now
        # Only a single call waits for its start, because each of several calls would delay the next one. An
        # idempotent call stores no start.
        waits_for_start = alone and not tool_call.idempotent
        shown = ports.notifications.shown(state, call.attempt) if waits_for_start else None
        reply = await ports.runners.call(placement, self._request(call, placement, now), shown)
        call.note_reply(reply, ports.clock.now())

    async def _may_move(self, call: CallAttempt) -> bool:
        """Note that a call goes to another process; return False if too many were lost with it."""
        assert call.placement is not None
        # The earlier process may still hold the request, so its slots must not be removed.
        call.fresh = False
        # Only a runner that died with the call counts: one that never accepted it did not die of it.
        call.lost_runners += call.ever_accepted and not await self.owned.ports.runners.alive(call.placement)
        if call.lost_runners >= call_attempt.MAX_LOST_RUNNERS:
            call.given_up = (
                f"{call_attempt.MAX_LOST_RUNNERS} runners in a row were lost while they had this call."
            )
            return False
        call.ever_accepted = False
        return True

    def _request(self, call: CallAttempt, placement: Placement, now: datetime) -> CallRequest:
        state, deadline, settings = self.owned.state, deadline_of(self.owned.run), self.owned.run.settings
        tool_call = call.open_call.call
        is_command = tool_call.name == BASH.name
        # A tool of an MCP server may use the access of the user for whom the run acts.
        acts_for = settings.acts_for if mcp_server_of(tool_call.name) is not None else ""
        chosen = settings.tools.search if tool_call.name == WEB_SEARCH.name else None
        return CallRequest(
            tenant=state.tenant,
            conversation_id=state.conversation_id,
            run_id=self.owned.run.run_id,
            attempt=call.attempt,
            call=tool_call,
            # The approved digest, and not that of the call in the log: the runner compares it with the call.
            digest=tool_call.digest if call.approved is None else call.approved.digest,
            runner_epoch=placement.runner_epoch,
            deadline=deadline,
            left_s=(deadline - now).total_seconds(),
            workspace=self.owned.workspace,
            place=placement.place,
            traceparent=settings.traceparent,
            user=settings.user if is_command else acts_for,
            toolchain=settings.tools.toolchain if is_command else None,
            answer=call.open_call.answer,
            search=chosen and SearchTarget(**dict(chosen)),
        )

    async def _void(self, call: CallAttempt, moved: bool) -> None:
        ports, state = self.owned.ports, self.owned.state
        void = CallStarted(
            conversation_id=state.conversation_id,
            attempt=call.attempt,
            runner=None,
            void=True,
            moved=moved,
            ts=ports.clock.now(),
        )
        await ports.slots.store_started(state.tenant, void)
        # The slot may hold another start: it is read before the next step.
        call.fresh = False

    async def _declare(self, call: CallAttempt, result: ToolResult) -> None:
        await self.owned.ports.slots.store_result(self.owned.state.tenant, self._finished(call, result))
        # The runner may have stored its own result first: the result in the slot counts.
        call.fresh = False

    def _finished(self, call: CallAttempt, result: ToolResult) -> CallFinished:
        conversation_id = self.owned.state.conversation_id
        return CallFinished(conversation_id=conversation_id, attempt=call.attempt, result=result)

    async def _commit(self, results: list[ToolResult]) -> None:
        placements = [self.calls[result.tool_call_id].placement for result in results]
        lost = [placement.loss for placement in placements if placement is not None]
        numbers = {call_id: call.number for call_id, call in self.calls.items()}
        now = self.owned.ports.clock.now()
        for batch in batches([storable(result) for result in results]):
            await self.owned.commit(
                lambda state, batch=batch: [
                    *completions(state, batch),
                    *questions(state, batch, numbers, now),
                    *losses(state, lost),
                ]
            )
        done = [(self.calls.pop(result.tool_call_id), result) for result in results]
        await self.owned.ports.notifications.forget(self.owned.state, [call.attempt for call, _ in done])
        # After the commit and never before: until then the slots are the only place that holds the results.
        removable = tuple(call.attempt for call, _ in done if call.slots_removable)
        if removable:
            await self.owned.ports.slots.forget(self.owned.state.tenant, removable)
        # A result that this owner declared stays, so that a result that the runner stores afterwards is
        # recognised as late. After the runner's own result, no further one can arrive.
        ended = tuple(call.attempt for call, result in done if not call.slots_removable and result.runner)
        if ended:
            await self.owned.ports.slots.forget_results(self.owned.state.tenant, ended)
