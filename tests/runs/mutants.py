"""Mutation testing of the protocol: each mutant breaks one promise, so a test here must fail.

    python -m tests.runs.mutants              # all of them, two at a time
    python -m tests.runs.mutants clean        # those whose name contains the word

Each mutant is a modified copy of the package, which precedes the original on the path. The scenarios and
property tests run first, because they take seconds; the random schedules follow. The mutants take minutes,
so they are not part of the test suite. Run them after every change of `banksman.runs` or of these tests. The
exit code is 1 if a mutant survives, or if the sources do not contain its text.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import ROOT

RUNS = Path("shared/banksman/runs")
GATEWAY = Path("services/gateway/banksman/gateway")
LIMIT_S = 400


@dataclass(frozen=True)
class Mutant:
    """One change in the sources, and the promise that it breaks."""

    name: str
    file: str
    old: str
    new: str
    breaks: str
    package: Path = RUNS
    """The package that contains the file."""

    @property
    def occurrences(self) -> int:
        """How often the source contains the text to replace; 1 for a mutant that can be applied."""
        return (ROOT / self.package / self.file).read_text().count(self.old)


MUTANTS = (
    Mutant(
        "slots are always deleted",
        "call_attempt.py",
        "return self.fresh and self.number == 1 and self.cancel_sent_at is None",
        "return True",
        "A runner that was disconnected may start a call whose slots were deleted.",
    ),
    Mutant(
        "a takeover inherits no calls",
        "coordinator.py",
        "        return cls.resumed(owned) if owned.took_over else cls(owned)\n",
        "        return cls(owned)\n",
        "A new owner trusts slots that requests of an earlier owner may fill.",
    ),
    Mutant(
        "a void is not stored",
        "coordinator.py",
        "        await ports.slots.store_started(state.tenant, void)\n",
        "",
        "A call that must not start is not prevented from starting.",
    ),
    Mutant(
        "every void announces another attempt",
        "coordinator.py",
        "            moved=moved,",
        "            moved=True,",
        "A process that reads the void of an ended call starts another attempt.",
    ),
    Mutant(
        "no void announces another attempt",
        "call_attempt.py",
        "    if void.moved:\n        return NextAttempt()\n",
        "",
        "A call with another attempt is treated as ended.",
    ),
    Mutant(
        "the owner waits for a lost runner",
        "call_attempt.py",
        "    if not runner_alive or started.runner is None:\n",
        "    if started.runner is None:\n",
        "A call that started on a lost runner gets no outcome in time.",
    ),
    Mutant(
        "unknown outcomes are repeated",
        "call_attempt.py",
        '        return Declare(unknown_outcome(call.call_id, "the machine that ran it was lost"))\n',
        "        return NextAttempt()\n",
        "An effect is repeated after a crash.",
    ),
    Mutant(
        "the placement is not recorded",
        "coordinator.py",
        "        call.placement = placement\n",
        "",
        "The loss of a runner with an accepted request is not detected.",
    ),
    Mutant(
        "busy counts as lost",
        "call_attempt.py",
        '(self.no_runner_since or now) if kind == "wrong_epoch" else None',
        "self.no_runner_since or now",
        "A call that waits for a busy runner ends as unavailable.",
    ),
    Mutant(
        "an idempotent call is left running",
        "call_attempt.py",
        "    if call.placement is not None and call.cancel_sent_at is None:\n"
        "        return SendCancel(call.placement)\n",
        "",
        "A cancelled call continues.",
    ),
    Mutant(
        "slots are never read again",
        "coordinator.py",
        "        if slots.finished is None and (not call.fresh or call.is_stale(ports.clock.now())):",
        "        if slots.finished is None and not call.fresh:",
        "An owner that missed a result waits without end.",
    ),
    Mutant(
        "no fence",
        "owner.py",
        "        if self.state.owner_epoch != self.owner.owner_epoch:\n",
        "        if False:\n",
        "Two owners drive one run.",
    ),
    Mutant(
        "an approval request is not published again",
        "claim.py",
        "                await publish_requests(ports, state)\n                return None\n",
        "                return None\n",
        "An approval request that a crash omitted is lost.",
    ),
    Mutant(
        "a takeover publishes no approval request",
        "loop.py",
        "                await publish_requests(owned.ports, owned.state)\n",
        "",
        "An approval request that a crash omitted is lost while other calls run.",
    ),
    Mutant(
        "the owner does not wait for the broker",
        "loop.py",
        "            await owned.wait_for_broker(cause)\n            # The broker may have stored what",
        "            raise\n            # The broker may have stored what",
        "A run ends because the broker was temporarily unavailable.",
    ),
    Mutant(
        "early cancels are forgotten",
        "fold.py",
        'CancelRequested(by="user") if run_id in state.cancelled_early else None',
        "None",
        "A run that was cancelled before its start is executed.",
    ),
    Mutant(
        "the count of a crash loop is reset",
        "fold.py",
        "    if state.claims_in_row >= CRASH_LOOP_CLAIMS:\n        return state.claims_in_row\n",
        "",
        "A run in a crash loop continues after some of its calls were ended.",
    ),
    Mutant(
        "the time limit includes waiting for a user",
        "fold.py",
        "waited_s=run.waited_s + waited",
        "waited_s=run.waited_s",
        "A run times out because its user decided late.",
    ),
    Mutant(
        "results in the order of their arrival",
        "fold_calls.py",
        "    results.sort(key=lambda message: places.get(message.result.tool_call_id, len(places)))\n",
        "",
        "A provider refuses the history.",
    ),
    Mutant(
        "edited arguments are dropped",
        "fold_calls.py",
        'edited = call.call.model_copy(update={"arguments": decision.arguments})',
        "edited = call.call",
        "What is executed is not what was approved.",
    ),
    Mutant(
        "a rejection is returned to the model",
        "steps.py",
        '(one.on_reject or run.settings.tools.on_reject) == "abort"',
        "False",
        "A rejected call does not end its run.",
    ),
    Mutant(
        "an open approval request stops the clock",
        "steps.py",
        "if run.parked_at is None and now >= deadline_of(run)",
        "if run.parked_at is None and not run.waits and now >= deadline_of(run)",
        "A call that hangs during an approval request occupies its owner for days.",
    ),
    Mutant(
        "the start of an ended run claims the next run",
        "claim.py",
        "    if isinstance(work, StartRun) or work.owner_epoch != state.owner_epoch:\n"
        "        return AckOnly()\n",
        "",
        "A run is claimed under a message that another process acks.",
    ),
    Mutant(
        "deliveries come in order",
        "claim.py",
        "    starts = None if isinstance(work, StartRun) and not alone else ()\n",
        "    starts = ()\n",
        "A message runs before one that was acknowledged earlier.",
    ),
    Mutant(
        "later messages are recorded first",
        "handlers.py",
        "            await _enqueue(ports, starts)\n            starts.clear()\n",
        "            pass\n",
        "A message that steers becomes a run before earlier ones.",
    ),
    Mutant(
        "signals come in order",
        "handlers.py",
        "    starts = await earlier_first(ports, signal, stream_seq)\n",
        "    starts: tuple[StartRun, ...] = ()\n",
        "A cancel ends a run before a message that steers it is in the run.",
    ),
    Mutant(
        "an owner acks a message that is not recorded",
        "claim.py",
        "    if state.run is None and any(one.run_id == start.run_id for one in new):\n",
        "    if state.run is None:\n",
        "A message behind many others is lost.",
    ),
    Mutant(
        "any delivery takes over",
        "claim.py",
        "if state.owner.work_seq == work_seq else AckOnly()",
        "if True else AckOnly()",
        "Two messages claim one run in turn.",
    ),
    Mutant(
        "any resume starts the queue",
        "claim.py",
        "if run_id == work.run_id else AckOnly()",
        "if run_id is not None else AckOnly()",
        "A run is claimed under a message that is due for an ack.",
    ),
    Mutant(
        "the queue is not woken",
        "handlers.py",
        "    if state.run is None and state.queue:\n",
        "    if False:\n",
        "A queued run is never started.",
    ),
    Mutant(
        "a decision does not resume",
        "handlers.py",
        "            if reply.outcome not in CLOSED_BY_SIGNAL:\n",
        "            if False:\n",
        "An approved run never continues.",
    ),
    Mutant(
        "an unsigned decision counts",
        "handlers.py",
        "        if reason is not None:\n            await ports.approvals.discard",
        "        if False:\n            await ports.approvals.discard",
        "A forged approval is executed.",
    ),
    Mutant(
        "any content of the slot closes an approval request",
        "approval/requests.py",
        "        reason = problem(stored, request, ports.signing_key)\n",
        "        reason = None\n",
        "A forged approval is recorded by a cancel or a steer.",
    ),
    Mutant(
        "digests are not compared",
        "approval/requests.py",
        "    if request.input is None and reply.digests != tuple(item.digest for item in request.items):\n",
        "    if False:\n",
        "A decision for other calls is accepted.",
    ),
    Mutant(
        "late decisions count",
        "approval/requests.py",
        "    if reply.decided_at > request.expires_at:\n",
        "    if False:\n",
        "A decision after the expiry is accepted.",
    ),
    Mutant(
        "a redelivered steer takes effect",
        "handlers.py",
        "        if _has_message(state, signal.message_id):\n",
        "        if False and _has_message(state, signal.message_id):\n",
        "A steer takes effect twice, and the next approval request is withdrawn.",
    ),
    Mutant(
        "the gateway returns any stored decision",
        "approvals/stored_replies.py",
        "    if problem(stored, request, key) is not None:\n",
        "    if False:\n",
        "A client receives an invalid decision.",
        package=GATEWAY,
    ),
    Mutant(
        "a new run for each request",
        "runs/idempotency.py",
        "    return stored.ids\n",
        "    return ids\n",
        "A repeated request starts a second run.",
        package=GATEWAY,
    ),
    Mutant(
        "no start slot",
        "runners/calls.py",
        "            if started:\n",
        "            if True:\n",
        "A call starts although its attempt is void.",
    ),
    Mutant(
        "a runner without a lease starts",
        "runners/calls.py",
        "            if not self.may_start():\n                return\n",
        "",
        "A call starts on a runner that lost its lease.",
    ),
    Mutant(
        "started attempts are forgotten",
        "runners/calls.py",
        "            self._remember(attempt_key(request))\n            if started:\n",
        "            if started:\n",
        "A request that arrives late is executed again.",
    ),
    Mutant(
        "no epoch check",
        "runners/calls.py",
        "        if request.runner_epoch != self.runner_epoch:\n",
        "        if False:\n",
        "A request to an earlier process is executed by its successor.",
    ),
    Mutant(
        "a late start after deletion",
        "handlers.py",
        "state.queue or (state.run is None and state.tombstone != state.last_seq):",
        "state.queue:",
        "The log after a purge does not show that the conversation was deleted.",
    ),
    Mutant(
        "a call that kills runners is repeated without end",
        "coordinator.py",
        "        if call.lost_runners >= call_attempt.MAX_LOST_RUNNERS:\n",
        "        if False:\n",
        "A call that kills its runners kills all of them.",
    ),
    Mutant(
        "any result in the slot counts",
        "coordinator.py",
        "if slots.finished is not None and slots.finished.result.tool_call_id != call.call_id:",
        "if False:",
        "A history contains a result without its call.",
    ),
    Mutant(
        "unreadable slots are freed",
        "coordinator.py",
        "        call.fresh = False\n        result = call_attempt.unknown_outcome(call.call_id, why)\n",
        "        result = call_attempt.unknown_outcome(call.call_id, why)\n",
        "A call starts after its outcome was reported.",
    ),
    Mutant(
        "an approved call starts after the expiry",
        "call_attempt.py",
        "    if call.approved_until is not None and now > call.approved_until:\n",
        "    if False:\n",
        "A call starts after its approval has expired.",
    ),
    Mutant(
        "all results in one commit",
        "outcome.py",
        "        if batch and size + more > COMMIT_BYTES:\n",
        "        if False:\n",
        "Results that arrive together do not fit into one commit, and the run never ends.",
    ),
    Mutant(
        "results of any length",
        "outcome.py",
        "    return first_fitting(_shorter(result), RESULT_BYTES)\n",
        "    return result\n",
        "A result does not fit into a commit, and the run never ends.",
    ),
    Mutant(
        "an owner trusts its state after an outage",
        "coordinator.py",
        "        return cls(owned, inherited=frozenset(call.call.id for call in owned.run.open_calls))\n",
        "        return cls(owned)\n",
        "An owner that lost the broker trusts slots that it may have filled.",
    ),
    Mutant(
        "the owner reads the log once after a refusal",
        "owner.py",
        "            except Refused:\n                continue\n",
        "            except Refused:\n                raise cause from None\n",
        "A run ends because the broker was temporarily unavailable.",
    ),
    Mutant(
        "claims are not counted",
        "fold.py",
        "    return state.claims_in_row + (not commit.after_reconnect and not alive)\n",
        "    return 1\n",
        "A run that kills its agents kills all of them.",
    ),
    Mutant(
        "a changed workspace moves at once",
        "runners/workspaces.py",
        "    if not record.dirty:\n        return chosen",
        "    if True:\n        return chosen",
        "Changes are lost although their runner would have returned in time.",
    ),
    Mutant(
        "a move loses nothing",
        "runners/workspaces.py",
        "    if record.dirty:\n        loss =",
        "    if False:\n        loss =",
        "Changes are lost without a report.",
    ),
    Mutant(
        "any complete snapshot clears the record",
        "runners/workspaces.py",
        "        if report.complete and report.generation == record.generation:\n",
        "        if report.complete:\n",
        "A late report of a complete snapshot hides a newer change.",
    ),
    Mutant(
        "any snapshot is newer",
        "runners/workspaces.py",
        "    return known is None or snapshot.created_at >= known.created_at\n",
        "    return True\n",
        "A late snapshot replaces a newer one.",
    ),
    Mutant(
        "earlier processes report",
        "runners/workspaces.py",
        "    if not mine or report.runner_epoch < record.runner_epoch:\n",
        "    if not mine:\n",
        "A disconnected process reports changes.",
    ),
    Mutant(
        "requests from before a move are admitted",
        "runners/workspaces.py",
        "        return place.term >= self.term and place.term > self.past\n",
        "        return True\n",
        "A call changes files of a workspace that has moved.",
    ),
    Mutant(
        "changes begin before they are reported",
        "runners/workspaces.py",
        "        if self.changed:\n            return None\n",
        "        if True:\n            return None\n",
        "A changed workspace moves as if it were unchanged.",
    ),
)


def main() -> int:
    """Run the mutants whose names contain the given words."""
    words = sys.argv[1:]
    chosen = [mutant for mutant in MUTANTS if all(word in mutant.name for word in words)]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        outcomes = list(pool.map(killed, chosen))
    return 0 if all(outcomes) else 1


def killed(mutant: Mutant) -> bool:
    """Return True if a test fails with the mutant."""
    if mutant.occurrences != 1:
        return _print_outcome(
            mutant, f"{mutant.file} contains its text {mutant.occurrences} times", alive=True
        )
    source = (ROOT / mutant.package / mutant.file).read_text()
    with tempfile.TemporaryDirectory() as directory:
        copied = Path(directory) / "banksman" / mutant.package.name
        shutil.copytree(ROOT / mutant.package, copied)
        (copied / mutant.file).write_text(source.replace(mutant.old, mutant.new))
        quick = _failing(directory, "not random_schedules")
        test = quick or _failing(directory, "random_schedules")
    return _print_outcome(mutant, f"killed by {test}" if test else "SURVIVED", alive=not test)


def _failing(directory: str, which: str) -> str:
    """Return the first test that fails; empty if none does."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-p",
        "no:cacheprovider",
        "-k",
        which,
        "tests/runs",
    ]
    path = os.pathsep.join([directory, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "the time limit"
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].partition(" - ")[0].partition("::")[2] or failed[0] if failed else ""


def _print_outcome(mutant: Mutant, outcome: str, *, alive: bool) -> bool:
    sys.stdout.write(f"{mutant.name}: {outcome}\n")
    sys.stdout.flush()
    return not alive


if __name__ == "__main__":
    sys.exit(main())
