"""The lines of a recording: operations as in Jepsen (invoke, then ok, fail or info), and observations.

`ok` and `fail` are replies of the system. `info`: the client received no reply; the outcome is unknown.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from banksman.contracts.approvals import ApprovalOutcome
from banksman.contracts.wire import JsonObject

Phase = Literal["invoke", "ok", "fail", "info"]


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    t: float = 0.0
    """Seconds since the start of the recording, by the recorder's clock; `Recording.add` sets it."""


class Began(_Line):
    """The start of a recording."""

    kind: Literal["began"] = "began"
    seed: int
    at: float
    """Seconds since 1970."""


class Send(_Line):
    """`chat.send`."""

    kind: Literal["send"] = "send"
    phase: Phase
    request_id: str
    """Equal for all repeats of one request."""
    conversation_id: str
    run_id: str | None = None
    """With `ok`: the run in the reply."""
    message_id: str | None = None
    """With `ok`: the message in the reply."""
    problem: str | None = None
    steers: bool = False
    """True for a message that may have steered an open run instead of starting one."""


class Start(_Line):
    """`workflow.start`."""

    kind: Literal["start"] = "start"
    phase: Phase
    request_id: str
    """Equal for all repeats of one request."""
    workflow: str
    fits: bool = True
    """Whether the parameters fit the workflow's form."""
    in_conversation: str | None = None
    """The conversation where the user started it; None outside of any."""
    conversation_id: str | None = None
    """With `ok`: the conversation in the reply, which contains the log of this run."""
    run_id: str | None = None
    """With `ok`: the run in the reply."""
    problem: str | None = None


class Decide(_Line):
    """`approval.reply`."""

    kind: Literal["decide"] = "decide"
    phase: Phase
    request_id: str
    approval_id: str
    outcome: ApprovalOutcome | None = None
    """With `ok`: the outcome of the winning decision, which may be that of another user."""
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
    """A durable event, as one reader received it."""

    kind: Literal["seen"] = "seen"
    reader: str
    subscription: int
    """The number of the reader's subscription; each subscription begins at an event that the reader names."""
    after_seq: int
    """The last event that the reader had received when it subscribed."""
    conversation_id: str
    log_epoch: str
    seq: int
    type: str
    run_id: str | None = None
    ts: float
    """The time of writing in seconds since 1970, by the writer's clock."""
    digest: str
    """Digest of the whole content; it must be equal for all readers."""
    data: JsonObject = Field(default_factory=dict)
    """The fields that the checks use."""


class Effect(_Line):
    """A line that an execution appended to a ledger."""

    kind: Literal["effect"] = "effect"
    marker: str
    """Part of the arguments of the only call that may write this line."""
    execution: str
    """Unique per execution."""
    at: float
    """Seconds since 1970."""


class Violation(_Line):
    """A model request that the vendor would have refused."""

    kind: Literal["violation"] = "violation"
    text: str


class Fault(_Line):
    """An injected fault."""

    kind: Literal["fault"] = "fault"
    what: str
    target: str


class Outage(_Line):
    """The end of an outage: the target responds again."""

    kind: Literal["outage"] = "outage"
    target: str
    seconds: float
    """For how long it did not respond."""


class Calm(_Line):
    """The end of all faults and new requests."""

    kind: Literal["calm"] = "calm"
    waiting: int = 0
    """Runs that users were waiting for at that moment, including those whose acceptance was still open."""


Line = Annotated[
    Began | Send | Start | Decide | Cancel | Seen | Effect | Violation | Fault | Outage | Calm,
    Field(discriminator="kind"),
]
LINE: TypeAdapter[Line] = TypeAdapter(Line)


class Recording:
    """A file to which lines are appended as they occur."""

    def __init__(self, file: Path, *, seed: int) -> None:
        self.file = file
        self.on_line: Callable[[Line], None] | None = None
        """Called with each line."""
        self._began = time.monotonic()
        self._out = file.open("w", encoding="utf-8")
        self.add(Began(seed=seed, at=time.time()))

    def add(self, line: Line) -> None:
        """Append a line with the current time."""
        timed = line.model_copy(update={"t": round(time.monotonic() - self._began, 4)})
        self._out.write(timed.model_dump_json(exclude_defaults=True, exclude={"kind"})[:-1])
        self._out.write(f',"kind":"{line.kind}"}}\n')
        if self.on_line is not None:
            self.on_line(timed)

    def close(self) -> None:
        """Flush and close the file."""
        self._out.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read(file: Path) -> list[Line]:
    """Return the lines of a recording.

    Raises:
        ValidationError: A line has no known form.
        OSError: The file cannot be read.
    """
    with file.open(encoding="utf-8") as lines:
        return [LINE.validate_json(line) for line in lines if line.strip()]
