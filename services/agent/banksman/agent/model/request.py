"""Sends a model request, with fallback and cancellation, and publishes the text while the model writes it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Self, TypeVar

from banksman.agent.protocols.base import DeltaFilter, ModelReply, ModelRequest, Protocol
from banksman.agent.providers.base import DeltaKind, DeltaSink
from banksman.agent.providers.catalog import Providers
from banksman.bus.connection import Bus
from banksman.bus.messages import Message
from banksman.bus.names import STATUS_NO_RESPONDERS
from banksman.contracts import subjects
from banksman.contracts.errors import ProviderFailed, Refused, Unavailable
from banksman.contracts.events import ReasoningCompleted
from banksman.contracts.live_output import Delta, ModelPause, ModelWaiting
from banksman.runs.owner import Ownership
from banksman.runs.steps import deadline_of
from banksman.runtime.redaction import safe_length, without_secrets

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Completion:
    model: str
    """`provider:model`."""
    provider: str
    reply: ModelReply


FALLBACK_WAIT_S = 10.0
"""Seconds that a model with successors may be overloaded or unreachable before the next model is used."""


async def complete_with_fallback(
    providers: Providers,
    tenant: str,
    models: tuple[str, ...],
    request: ModelRequest,
    *,
    deltas: DeltaSink,
    deadline_s: float,
    waited_s: float = 0.0,
) -> Completion:
    """Send a request to the models in turn until one replies; `deadline_s` is for all together.

    Only an unavailable provider is skipped. A model with successors gets half of the time that is left, and
    waits at most `FALLBACK_WAIT_S` while it is overloaded. `waited_s` is the time that earlier processes
    spent on the same request, which counts towards `max_wait_s`.

    Raises:
        ProviderFailed: The last model is unavailable, or a model refused the request.
        BadInput: A model is unknown.
    """
    began = time.monotonic()
    until, wait_until = began + deadline_s, began + providers.max_wait_s - waited_s
    for successors, model in zip(reversed(range(len(models))), models, strict=True):
        provider, name = providers.choose(model, tenant)
        left_s = max(0.1, until - time.monotonic())
        wait_s = max(0.0, wait_until - time.monotonic())
        try:
            reply = await provider.complete(
                replace(request, model=name),
                deltas=deltas,
                deadline_s=left_s / 2 if successors else left_s,
                wait_s=min(wait_s, FALLBACK_WAIT_S) if successors else wait_s,
            )
        except ProviderFailed as failure:
            if not failure.unavailable or not successors:
                raise
            logger.warning(
                "the model is unavailable, trying the next one: %s", failure, extra={"model": model}
            )
            await deltas.restart()
        else:
            return Completion(model, provider.name, reply)
    raise ValueError("models: at least one is expected")


async def unless_cancelled(owned: Ownership, work: Coroutine[Any, Any, T]) -> T | None:
    """Return the result of `work`; None if the run is cancelled first, which also cancels `work`."""
    task = asyncio.create_task(work)
    try:
        while not task.done():
            notified = await _done_or_notified(owned, task)
            if notified and not task.done():
                # While the broker is away, the model continues. The commit of the reply finds a cancel.
                with contextlib.suppress(Refused):
                    await owned.refresh()
                run = owned.state.run
                ended = run is None or run.cancel is not None or owned.state.deleted
                # A reply that arrived meanwhile is charged, so it is recorded.
                if ended and not task.done():
                    return None
        return task.result()
    finally:
        task.cancel()
        await asyncio.wait({task})


async def _done_or_notified(owned: Ownership, task: asyncio.Task[Any]) -> bool:
    """Wait until `task` is done or a commit is reported; return whether others may have committed."""
    # The provider ends the request at the deadline. The wait is longer, so that its error is reported.
    until = deadline_of(owned.run) + timedelta(seconds=5)
    notified = asyncio.create_task(owned.ports.notifications.wait(owned.state, until))
    try:
        await asyncio.wait({task, notified}, return_when=asyncio.FIRST_COMPLETED)
        return notified.done() and notified.result()
    finally:
        notified.cancel()


BATCH_S: Final = 0.01
"""Seconds that a piece waits for further pieces, which are published with it as one message."""
CHECK_S: Final = 0.5
"""Seconds between two checks whether a client receives the text. Nothing is published while none does."""
REPEAT_S: Final = 0.25
"""Least seconds between two repetitions of the text: clients that subscribe meanwhile share one."""
REASONING_CHARS: Final = 20_000
"""Characters of the reasoning of a reply that are stored."""
REPEATED_CHARS: Final = 64 * 1024
"""Maximum characters of one message of a repetition."""


def empty_delta(owned: Ownership) -> Delta:
    """Return a piece without text of a new message."""
    return Delta(
        conversation_id=owned.state.conversation_id,
        run_id=owned.run.run_id,
        message_id=owned.ports.clock.new_id("m"),
        offset=0,
        text="",
    )


async def publish_wait(bus: Bus, subject: str, empty: Delta, pause: ModelPause) -> None:
    """Publish that a request is sent again after a pause; `empty` names its message."""
    notice = ModelWaiting(
        conversation_id=empty.conversation_id, run_id=empty.run_id, message_id=empty.message_id, pause=pause
    )
    with contextlib.suppress(Unavailable):
        await bus.replies.send(subject, notice.model_dump_json().encode(), "")


class Deltas:
    """The `DeltaSink` of one reply: it publishes the text, but never the text of a call.

    As a context manager it learns from the server whether a client has subscribed.
    """

    def __init__(
        self, bus: Bus, tenant: str, empty: Delta, protocol: Protocol, confirm: Callable[[], Awaitable[None]]
    ) -> None:
        """`empty` is a piece without text. `confirm` raises an exception if another process owns the run."""
        self.message_id = empty.message_id
        self._bus = bus
        self._confirm = confirm
        self._protocol = protocol
        self._filter: DeltaFilter = protocol.delta_filter()
        self._subject = subjects.delta(tenant, empty.conversation_id)
        self._empty = empty
        self._offsets: dict[DeltaKind, int] = {"message": 0, "reasoning": 0}
        self._unsafe: dict[DeltaKind, str] = {"message": "", "reasoning": ""}
        self._streamed: dict[DeltaKind, list[str]] = {"message": [], "reasoning": []}
        self._thought: tuple[float, float] | None = None
        """When the first and the last piece of the reasoning arrived."""
        self._kind: DeltaKind = "message"
        """The kind of the text that waits to be published."""
        self._waiting = ""
        self._batch: asyncio.Task[None] | None = None
        """Publishes the waiting text."""
        self._repeat: asyncio.Task[None] | None = None
        self._wanted = False
        self._inbox = ""
        self._check_at = float("-inf")
        self._has_readers = True
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self._inbox = self._stack.enter_context(
            self._bus.replies.expect(self._subject, self._answered, lambda _error: None)
        )
        return self

    def __exit__(self, *_: object) -> None:
        for task in (self._batch, self._repeat):
            if task is not None:
                task.cancel()
        self._stack.close()

    @property
    def streamed(self) -> str:
        """The published text of the message, without reasoning."""
        return "".join(self._streamed["message"])

    @property
    def reasoning(self) -> tuple[ReasoningCompleted, ...]:
        """Return the event of the reasoning so far; nothing without reasoning."""
        text = "".join(self._streamed["reasoning"])
        if self._thought is None or not text:
            return ()
        began, ended = self._thought
        completed = ReasoningCompleted(
            message_id=self.message_id,
            text=text[:REASONING_CHARS],
            characters=len(text),
            duration_s=round(ended - began, 1),
        )
        return (completed,)

    async def write(self, kind: DeltaKind, text: str) -> None:
        """Publish the next piece, together with pieces that follow within `BATCH_S`."""
        if kind == "reasoning":
            now = asyncio.get_running_loop().time()
            self._thought = (self._thought[0] if self._thought else now, now)
        # A secret of this process may span several pieces, so its possible beginning is held back.
        text = self._unsafe[kind] + text
        safe = safe_length(text)
        self._unsafe[kind] = text[safe:]
        await self._pass_on(kind, text[:safe])

    async def restart(self) -> None:
        """Restart the reply: clients replace the shown text when its offsets begin at 0 again."""
        await self._confirm()
        self._filter = self._protocol.delta_filter()
        self._offsets = {"message": 0, "reasoning": 0}
        self._unsafe = {"message": "", "reasoning": ""}
        self._streamed = {"message": [], "reasoning": []}
        self._thought = None
        self._waiting = ""

    async def waiting(self, pause: ModelPause) -> None:
        await publish_wait(self._bus, self._subject, self._empty, pause)

    async def end(self, *, is_final: bool) -> None:
        """Publish the waiting text. For a final reply, also publish the text withheld as a possible call."""
        if is_final:
            await self._pass_on("message", self._unsafe["message"])
            await self._add("message", self._filter.flush())
        await self._publish_waiting()

    async def _pass_on(self, kind: DeltaKind, text: str) -> None:
        text = without_secrets(text)
        await self._add(kind, self._filter.feed(text) if kind == "message" else text)

    async def _add(self, kind: DeltaKind, text: str) -> None:
        if not text:
            return
        self._streamed[kind].append(text)
        if kind != self._kind:
            await self._publish_waiting()
        self._kind, self._waiting = kind, self._waiting + text
        if self._batch is None or self._batch.done():
            self._batch = asyncio.create_task(self._publish_batch())

    async def _publish_batch(self) -> None:
        await asyncio.sleep(BATCH_S)
        await self._publish_waiting()

    async def _publish_waiting(self) -> None:
        text, self._waiting = self._waiting, ""
        if not text:
            return
        delta = self._empty.model_copy(
            update={"kind": self._kind, "offset": self._offsets[self._kind], "text": text}
        )
        self._offsets[self._kind] += len(text)
        now = asyncio.get_running_loop().time()
        checks = now >= self._check_at
        if not (checks or self._has_readers):
            return
        if checks:
            # Without a subscriber, the server replies `no responders` to a message with a reply subject.
            self._check_at, self._has_readers = now + CHECK_S, True
        await self._publish(delta, self._inbox if checks else "")

    async def _publish(self, delta: Delta, reply_to: str = "") -> None:
        # A client that misses a piece receives the whole message from the log.
        with contextlib.suppress(Unavailable):
            await self._bus.replies.send(self._subject, delta.model_dump_json().encode(), reply_to)

    def repeat(self) -> None:
        """Publish the text so far from its beginning, for a client that has just subscribed."""
        self._wanted = self._has_readers = True
        if self._repeat is None or self._repeat.done():
            self._repeat = asyncio.create_task(self._repeat_wanted())

    async def _repeat_wanted(self) -> None:
        while self._wanted:
            self._wanted = False
            await self._publish_again("reasoning")
            await self._publish_again("message")
            await asyncio.sleep(REPEAT_S)

    async def _publish_again(self, kind: DeltaKind) -> None:
        # Later pieces continue at this offset, whether they arrive before or after.
        text = "".join(self._streamed[kind])[: self._offsets[kind]]
        for offset in range(0, len(text), REPEATED_CHARS):
            piece = text[offset : offset + REPEATED_CHARS]
            changes = {"kind": kind, "offset": offset, "text": piece, "repeated": True}
            await self._publish(self._empty.model_copy(update=changes))

    def _answered(self, message: Message) -> None:
        if message.status == STATUS_NO_RESPONDERS:
            self._has_readers = False


class UnfinishedTexts:
    """The replies that models are writing for this process, by the subject that requests them again."""

    def __init__(self) -> None:
        self._open: dict[str, Deltas] = {}

    @asynccontextmanager
    async def served(self, bus: Bus) -> AsyncGenerator[None]:
        subscription = await bus.listen(subjects.delta_wanted(subjects.ANY, subjects.ANY), self._received)
        yield
        await subscription.unsubscribe()

    @contextmanager
    def writing(self, tenant: str, conversation_id: str, deltas: Deltas) -> Generator[None]:
        subject = subjects.delta_wanted(tenant, conversation_id)
        self._open[subject] = deltas
        try:
            yield
        finally:
            # Another model request of this process may have begun after a takeover.
            if self._open.get(subject) is deltas:
                del self._open[subject]

    def _received(self, message: Message) -> None:
        if (deltas := self._open.get(message.subject)) is not None:
            deltas.repeat()
