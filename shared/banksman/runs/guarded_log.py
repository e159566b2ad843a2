"""The logs as those see them who drive runs: nothing is read from a damaged one, or appended to it.

A fold that goes on from what a process keeps would hide that a log went back: its reader asks for what comes
after a commit that is gone. So whatever does not fit is looked at twice, then every service is told.
"""

from __future__ import annotations

import asyncio

from banksman.bus.errors import LogBroken, LogDamaged
from banksman.bus.log import EventLog
from banksman.contracts.events import Commit
from banksman.log_integrity.damage import DamagedLogs
from banksman.log_integrity.survey import CONFIRM_S, LOOK_AGAIN_S
from banksman.runs.folded_log import FoldedLog
from banksman.runs.state import Conversation


class GuardedLog:
    """Folded logs, none of them damaged."""

    def __init__(self, folds: FoldedLog, log: EventLog, damaged: DamagedLogs) -> None:
        self._folds = folds
        self._log = log
        self._damaged = damaged

    async def read(self, tenant: str, conversation_id: str) -> Conversation:
        """The fold of everything stored when the call was made, or later.

        Raises:
            LogDamaged: a commit is missing from the log, or it is known to be damaged.
            Poison: a commit cannot be decoded.
            Unavailable: no answer.
        """
        self._check(tenant, conversation_id)
        try:
            return await self._folds.read(tenant, conversation_id)
        except LogBroken as broken:
            return await self._read_anew(tenant, conversation_id, str(broken))

    async def append(self, state: Conversation, commit: Commit) -> Conversation | None:
        """Store a commit right behind `state`; None when another came first.

        Raises:
            LogDamaged: what `state` is of is gone, or the log is known to be damaged.
            Overloaded, MessageTooLarge, Unavailable: as `EventLog.append`.
        """
        self._check(state.tenant, state.conversation_id)
        stored = await self._folds.append(state, commit)
        if stored is None:
            await self._check_end(state)
        return stored

    def _check(self, tenant: str, conversation_id: str) -> None:
        try:
            self._damaged.check(tenant, conversation_id)
        except LogDamaged:
            # It may be mended when it is asked for again, and what is kept be of commits that are gone.
            self._folds.forget(tenant, conversation_id)
            raise

    async def _read_anew(self, tenant: str, conversation_id: str, reason: str) -> Conversation:
        """Fold from the beginning, after a fold that went on from what was kept failed."""
        kept = self._folds.at_hand(tenant, conversation_id)
        self._folds.forget(tenant, conversation_id)
        try:
            state = await self._folds.read(tenant, conversation_id)
        except LogBroken as broken:
            raise await self._damaged.report(tenant, conversation_id, str(broken)) from broken
        # A deleted log is cut behind what was kept of it; from any other nothing is removed.
        if state.deleted or not kept.stream_seq:
            return state
        raise await self._damaged.report(
            tenant, conversation_id, f"what was stored at {kept.stream_seq} is gone ({reason})"
        )

    async def _check_end(self, state: Conversation) -> None:
        """Make sure that another commit came after `state`, and not that the log went back.

        Without it an owner would append to such a log for ever.
        """
        tenant, conversation_id = state.tenant, state.conversation_id
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CONFIRM_S[self._log.bus.settings.replicas]
        while True:
            last = await self._log.last(tenant, conversation_id)
            found = 0 if last is None else last.stream_seq
            if found >= state.stream_seq:
                return
            if loop.time() > deadline:
                break
            await asyncio.sleep(LOOK_AGAIN_S)
        self._folds.forget(tenant, conversation_id)
        problem = f"it ends with message {found}, and what was stored at {state.stream_seq} is gone"
        raise await self._damaged.report(tenant, conversation_id, problem)
