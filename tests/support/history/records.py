"""The lines of a recording: operations as in Jepsen (invoke, then ok, fail or info), and what was seen.

`ok` and `fail` are what the system answered. `info` means that the client does not know: it got no answer.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from banksman.contracts.events import ApprovalOutcome
from banksman.contracts.wire import JsonObject

Phase = Literal["invoke", "ok", "fail", "info"]


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    t: float = 0.0
    """Seconds since the recording began, by the recorder's own clock; `Recording.add` sets it."""


class Began(_Line):
    """A recording begins."""

    kind: Literal["began"] = "began"
    seed: int
    at: float
    """Seconds since 1970."""


class Send(_Line):
    """`chat.send`."""

    kind: Literal["send"] = "send"
    phase: Phase
    request_id: str
    """The same for every repeat of one request."""
    conversation_id: str
    run_id: str | None = None
    """With `ok`: the run that the answer names."""
    message_id: str | None = None
    """With `ok`: the message that the answer names."""
    problem: str | None = None
    steers: bool = False
    """True for a message that may have gone to an open run instead of starting one."""


class Start(_Line):
    """`workflow.start`."""

    kind: Literal["start"] = "start"
    phase: Phase
    request_id: str
    """The same for every repeat of one request."""
    workflow: str
    fits: bool = True
    """Whether the parameters fit the workflow's form."""
    in_conversation: str | None = None
    """Where it was started; None for nowhere."""
    conversation_id: str | None = None
    """With `ok`: the conversation that the answer names, the log of this run."""
    run_id: str | None = None
    """With `ok`: the run that the answer names."""
    problem: str | None = None


class Decide(_Line):
    """`approval.reply`."""

    kind: Literal["decide"] = "decide"
    phase: Phase
    request_id: str
    approval_id: str
    outcome: ApprovalOutcome | None = None
    """With `ok`: the outcome that stands, by any user."""
    already_resolved: bool = False
    """With `ok`: another user had decided before."""
    problem: str | None = None


class Cancel(_Line):
    """`run.cancel`."""

    kind: Literal["cancel"] = "cancel"
    phase: Phase
    request_id: str
    run_id: str
    problem: str | None = None


class Seen(_Line):
    """A durable event, as one reader got it."""

    kind: Literal["seen"] = "seen"
    reader: str
    subscription: int
    """Counts what the reader subscribed to, each from an event that it names."""
    after_seq: int
    """The last event that it had when it subscribed."""
    conversation_id: str
    log_epoch: str
    seq: int
    type: str
    run_id: str | None = None
    ts: float
    """When it was written, in seconds since 1970, by the clock of its writer."""
    digest: str
    """Of its whole content: readers must agree."""
    data: JsonObject = Field(default_factory=dict)
    """What the checks need of it."""


class Effect(_Line):
    """A line that an execution wrote into a ledger."""

    kind: Literal["effect"] = "effect"
    marker: str
    """Stands in the arguments of the one call that may write it."""
    execution: str
    """Different for each execution."""
    at: float
    """Seconds since 1970."""


class Violation(_Line):
    """A model request that its vendor would have refused."""

    kind: Literal["violation"] = "violation"
    text: str


class Fault(_Line):
    """What was done to the system."""

    kind: Literal["fault"] = "fault"
    what: str
    target: str


class Calm(_Line):
    """Faults and new requests are over."""

    kind: Literal["calm"] = "calm"


Line = Annotated[
    Began | Send | Start | Decide | Cancel | Seen | Effect | Violation | Fault | Calm,
    Field(discriminator="kind"),
]
LINE: TypeAdapter[Line] = TypeAdapter(Line)


class Recording:
    """A file that lines are written to as things happen."""

    def __init__(self, file: Path, *, seed: int) -> None:
        self.file = file
        self._began = time.monotonic()
        self._out = file.open("w", encoding="utf-8")
        self.add(Began(seed=seed, at=time.time()))

    def add(self, line: Line) -> None:
        """Write a line; it gets the time of now."""
        timed = line.model_copy(update={"t": round(time.monotonic() - self._began, 4)})
        self._out.write(timed.model_dump_json(exclude_defaults=True, exclude={"kind"})[:-1])
        self._out.write(f',"kind":"{line.kind}"}}\n')

    def close(self) -> None:
        """Write what is left, and close the file."""
        self._out.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(file: Path) -> list[Line]:
    """The lines of a recording.

    Raises:
        ValidationError: a line is none.
        OSError: it cannot be read.
    """
    with file.open(encoding="utf-8") as lines:
        return [LINE.validate_json(line) for line in lines if line.strip()]
