"""Schedules as they are stored, and as clients send and read them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from banksman.contracts.assistants import RunOverrides
from banksman.contracts.messages import PERSON, UNKNOWN, Provenance
from banksman.contracts.wire import JsonObject, Stored, Timestamp, Token
from banksman.gateway.operation.parameters import RequestBody
from banksman.gateway.settings import Right

MAX_PROMPT_CHARS = 32_000
LISTED_RUNS = 20
"""Number of last runs that a schedule shows."""

Missed = Literal["run_once", "skip"]
"""
run_once  a schedule that was due while the system was down starts one run afterwards
skip      it starts no run
"""
RunResult = Literal["started", "skipped", "failed"]
"""
started  the run is stored; its status is that of the run
skipped  it was due more than a minute before, and the schedule skips missed runs
failed   it could not start; `error` states the reason
"""


class PromptStart(RequestBody):
    """Start a run with a message."""

    type: Literal["prompt"]
    content: str = Field(min_length=1, max_length=MAX_PROMPT_CHARS)
    conversation_id: Token | None = None
    """None for a new conversation each time."""
    assistant: Token = "default"
    """The assistant of new conversations."""
    overrides: RunOverrides = RunOverrides()
    variables: JsonObject = Field(default_factory=dict)


class WorkflowRunStart(RequestBody):
    """Start a run of a workflow."""

    type: Literal["workflow"]
    workflow: Token
    parameters: JsonObject = Field(default_factory=dict)
    conversation_id: Token | None = None
    """The conversation whose workspace it uses; None for a new one each time."""


class ScheduleBody(RequestBody):
    """A schedule to create, or to replace another one. It has either `at` or `cron`."""

    title: str = Field(default="", max_length=200)
    start: PromptStart | WorkflowRunStart = Field(discriminator="type")
    at: Timestamp | None = None
    """The time of its only run."""
    cron: str | None = Field(default=None, max_length=200)
    """Five fields: minute, hour, day of month, month, day of week."""
    timezone: str = Field(default="UTC", max_length=64)
    """The IANA time zone of `cron`, such as `Europe/Berlin`."""
    missed: Missed = "run_once"
    paused: bool = False
    provenance: Provenance = PERSON
    """Who wrote the message or the parameters. A client states it if a person did not type all of it."""


class ScheduledOverrides(RunOverrides):
    """Settings of a prompt's runs, as they are stored."""

    # A gateway must accept fields that a newer gateway adds.
    model_config = ConfigDict(extra="ignore")


class ScheduledPrompt(Stored):
    """A message that starts a run, as it is stored."""

    type: Literal["prompt"] = "prompt"
    content: str
    conversation_id: Token | None = None
    """None for a new conversation each time."""
    assistant: Token = "default"
    """The assistant of new conversations."""
    overrides: ScheduledOverrides = ScheduledOverrides()
    variables: JsonObject = Field(default_factory=dict)


class ScheduledWorkflow(Stored):
    """A run of a workflow, as it is stored."""

    type: Literal["workflow"] = "workflow"
    workflow: Token
    parameters: JsonObject = Field(default_factory=dict)
    conversation_id: Token | None = None
    """The conversation whose workspace it uses; None for a new one each time."""


ScheduledStart = Annotated[ScheduledPrompt | ScheduledWorkflow, Field(discriminator="type")]


class ScheduleError(Stored):
    """Why a run could not start."""

    code: str
    message: str


class ScheduledRun(Stored):
    """A run that was due, or that a user started."""

    due_at: Timestamp | None
    """When it was due; None for a run that a user started."""
    at: Timestamp
    """When it started, was skipped, or failed to start."""
    result: RunResult
    user: str
    """The user as whom it runs."""
    conversation_id: Token | None = None
    run_id: Token | None = None
    status: str | None = None
    """The status of the run; only where one schedule is read. None if its conversation was deleted."""
    error: ScheduleError | None = None


class ScheduleFields(Stored):
    """The fields of a schedule that clients read."""

    id: Token
    title: str
    start: ScheduledStart
    at: Timestamp | None
    cron: str | None
    timezone: str
    missed: Missed
    paused: bool
    created_at: Timestamp
    updated_at: Timestamp
    user: str
    """The user who last changed it. Its runs act as this user, with the rights that the user had then."""
    next_at: Timestamp | None
    """When it is due; None while it is paused, and after its only run."""


class Schedule(ScheduleFields):
    """A schedule as it is stored."""

    rights: tuple[Right, ...]
    provenance: Provenance = UNKNOWN
    """Who wrote the message or the parameters."""
    runs: tuple[ScheduledRun, ...] = ()
    """The last runs, the newest first."""

    def with_run(self, run: ScheduledRun) -> Schedule:
        return self.model_copy(update={"runs": (run, *self.runs)[:LISTED_RUNS]})


class ListedSchedule(ScheduleFields):
    """A schedule with its last run."""

    last_run: ScheduledRun | None


class ReadSchedule(ListedSchedule):
    """A schedule with its last runs."""

    runs: tuple[ScheduledRun, ...]
    """The last runs, the newest first."""


class ComingStarts(Stored):
    """When a schedule starts in the next two weeks."""

    schedule_id: Token
    starts: tuple[Timestamp, ...]
    """The earliest first; a time in the past is due now."""
    more: bool
    """Whether it also starts after the last of these times."""


class DueTime(Stored):
    """The part of a schedule that each gateway caches."""

    next_at: Timestamp | None = None
