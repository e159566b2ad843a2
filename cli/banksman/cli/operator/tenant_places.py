"""The places of tenants' data on the broker: every subject, bucket and object store that names a tenant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from banksman.bus import names
from banksman.contracts import subjects
from banksman.contracts.subjects import ANY
from banksman.contracts.usage import passthrough_key, usage_key

Filter = Callable[[str], str]
"""Returns the subjects of a tenant, or with `*` those of all tenants."""

TENANT_KEYS = (
    names.TOOLS,
    names.ASSISTANTS,
    names.ASSISTANT_REVISIONS,
    names.PROMPTS,
    names.WORKFLOW_DEFINITIONS,
    names.CONVERSATIONS,
    names.OWNERS,
    names.IDEMPOTENCY,
    names.DAMAGED,
    names.KEYS,
    names.WEBHOOKS,
    names.DELIVERIES,
    names.SCHEDULES,
    names.MCP,
    names.TENANT_SECRETS,
    names.POLICIES,
)
"""Buckets whose keys begin with the tenant. Keys of the platform have one token."""


@dataclass(frozen=True, slots=True)
class Place:
    """Subjects of one stream that name a tenant."""

    stream: str
    subjects_of: Filter

    def tenant_of(self, subject: str) -> str:
        """Return the tenant that a subject of this place names."""
        probe = self.subjects_of("tenant-probe").split(".")
        return subject.split(".")[probe.index("tenant-probe")]


def _places() -> tuple[Place, ...]:
    filters: tuple[tuple[str, Filter], ...] = (
        (names.EVENTS, lambda t: subjects.conversation(t, ANY)),
        (names.RUNS, lambda t: subjects.run_work(t, ANY)),
        (names.RUNS, lambda t: subjects.run_signal(t, ANY)),
        (names.WORKFLOWS, lambda t: subjects.workflow_run(ANY, t, ANY)),
        (names.WEBHOOK_QUEUE, lambda t: subjects.webhook_delivery(t, ANY)),
        (names.TIMERS, lambda t: subjects.timer_set(ANY, t, ANY)),
        (names.TIMERS, lambda t: subjects.timer_fired(ANY, t, ANY)),
        (names.TIMERS, lambda t: subjects.schedule_set(t, ANY)),
        (names.TIMERS, lambda t: subjects.schedule_due(t, ANY)),
        (names.AUDIT, lambda t: subjects.audit(t, ANY, ANY)),
        (names.APPROVALS, lambda t: subjects.approval_request(t, ANY)),
        (names.APPROVALS, lambda t: subjects.approval_reply(t, ANY)),
        (names.APPROVALS, lambda t: subjects.approval_note(t, ANY, ANY)),
        (names.RESULTS, lambda t: subjects.tool_started(t, ANY)),
        (names.RESULTS, lambda t: subjects.tool_result(t, ANY)),
        (names.kv_stream(names.RUNNERS), lambda t: names.kv_subject(names.RUNNERS, f"*.{t}.*")),
        (names.kv_stream(names.USAGE), lambda t: names.kv_subject(names.USAGE, usage_key(t))),
        (names.kv_stream(names.USAGE), lambda t: names.kv_subject(names.USAGE, passthrough_key(t))),
    )
    found = [Place(stream, subjects_of) for stream, subjects_of in filters]
    return (*found, *(_bucket(name) for name in TENANT_KEYS))


def _bucket(name: str) -> Place:
    return Place(names.kv_stream(name), lambda tenant: names.kv_subject(name, f"{tenant}.>"))


PLACES = _places()
