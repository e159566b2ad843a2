"""Every subject, as a pattern that its tokens fill. No other module contains a subject as a literal.

Tokens are tenant, conversation, attempt (`call-number`), approval, and runner (or tool server). Each is
checked, so no id can add a token or a wildcard to a subject.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from banksman.contracts.ids import check_token

ANY = "*"
"""The wildcard for one token, allowed in subjects of subscriptions."""
RUN_ACCOUNT = "run"
"""Source of relayed messages: the account of runners and of the platform's tool servers."""
TENANT_ACCOUNT = "tenant"
"""Source of relayed messages: the accounts of tenants."""
SERVED = "served"
"""The name under which the runs of all workflows are queued. Tenants create any number of workflows, and a
name per workflow would need a consumer each."""


@lru_cache(maxsize=4096)
def _checked(token: str) -> str:
    return token if token == ANY else check_token(token, "subject token")


@dataclass(frozen=True, slots=True)
class Subject:
    """A pattern whose names a call replaces by its arguments, in their order."""

    pattern: str
    _form: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_form", re.sub(r"\{\w+\}", "%s", self.pattern))

    @property
    def of_all(self) -> str:
        """The filter for all subjects of the pattern."""
        return self.of_tenant(ANY)

    def of_tenant(self, tenant: str) -> str:
        """Return the filter for all subjects of a tenant."""
        return re.sub(r"\{\w+\}", ANY, self.pattern.replace("{tenant}", _checked(tenant)))

    def __call__(self, *tokens: str) -> str:
        """Return the subject; raise `BadInput` unless each token is valid or `ANY`."""
        return self._form % tuple(map(_checked, tokens))


Fixed = Callable[[], str]
One = Callable[[str], str]
Two = Callable[[str, str], str]
Three = Callable[[str, str, str], str]
Six = Callable[[str, str, str, str, str, str], str]

conversation: Two = Subject("conversation.{tenant}.{conversation_id}")
"""The log of one conversation (stream EVENTS)."""
live: Two = Subject("live.{tenant}.{conversation_id}")
"""The server republishes each stored commit here."""
delta: Two = Subject("delta.{tenant}.{conversation_id}")
"""Token deltas; core, lossy by design."""
delta_wanted: Two = Subject("delta_wanted.{tenant}.{conversation_id}")
"""A gateway requests the text of the unfinished message from its beginning; core."""
run_work: Two = Subject("run.work.{tenant}.{conversation_id}")
"""Messages that start and resume runs (stream RUNS, durable `agents`)."""
run_signal: Two = Subject("run.signal.{tenant}.{conversation_id}")
"""Cancel, steer, rename and delete (stream RUNS, durable `signals`)."""
run_messages: Two = Subject("run.*.{tenant}.{conversation_id}")
"""All messages of stream RUNS for a conversation."""
cancel_hint: Two = Subject("cancel.{tenant}.{conversation_id}")
"""A hint that wakes an owner at once; core. The signal itself is in RUNS."""
webhook_delivery: Two = Subject("webhook.{tenant}.{webhook_id}")
"""Messages to deliver to a webhook (stream WEBHOOKS, durable `webhooks`)."""
approval_request: Two = Subject("approval.request.{tenant}.{approval_id}")
"""One approval request (stream APPROVALS)."""
approval_reply: Two = Subject("approval.reply.{tenant}.{approval_id}")
"""The one reply to an approval request (stream APPROVALS)."""
approval_note: Three = Subject("approval.note.{tenant}.{approval_id}.{name}")
"""A write-once record of an open approval request (stream APPROVALS).

Its name is `first` for the first of two approvals, `aside-{digest of the user}` if a user set the request
aside, and `link-{digest of the link}` for the use of a link.
"""
tool_started: Two = Subject("tool.started.{tenant}.{attempt}")
"""The one start of an attempt (stream RESULTS)."""
tool_result: Two = Subject("tool.result.{tenant}.{attempt}")
"""The one result of an attempt (stream RESULTS)."""
tool_slots: Two = Subject("tool.*.{tenant}.{attempt}")
"""Both slots of an attempt."""
stored_ack: Six = Subject("stored.ack.{source}.{owner}.{inbox}.{number}.{agent}.{request}")
"""The acknowledgement of a message that an agent stored for a runner or tool server, sent to both.

The agent chooses the owner: the tenant whose account sent the message, or in account RUN the holder of
the ticket. The publisher chooses its inbox and the number of the message.
"""
stored_acks: Two = Subject("stored.ack.{source}.{owner}.*.*.*.*")
"""All acknowledgements for one owner. No user may publish there."""
relayed_start: Three = Subject("relay.{source}.started.{tenant}.{attempt}")
"""A start that a runner or tool server published on `tool_started`, served by agents; core request.

The broker maps the messages of other accounts to the relay. `source` is `RUN_ACCOUNT`, or
`TENANT_ACCOUNT` for the account of that tenant, which cannot name another one.
"""
relayed_result: Three = Subject("relay.{source}.result.{tenant}.{attempt}")
"""A result that a runner or tool server published on `tool_result`, served by agents."""
relayed_late_result: Fixed = Subject(f"relay.{RUN_ACCOUNT}.late")
"""A late result that a runner published on `late_result`, served by agents."""
relayed_lease: Two = Subject(f"relay.{RUN_ACCOUNT}.lease.{{server}}.{{epoch}}")
"""The lease of a process of a tool server of the platform."""
tenant_lease: Three = Subject(f"relay.{TENANT_ACCOUNT}.lease.{{tenant}}.{{server}}.{{epoch}}")
"""The lease of a process of a tenant's tool server."""
tool_call: Three = Subject("tool.call.{runner}.{tenant}.{conversation_id}")
"""A call to one runner or tool server; core request."""
tool_cancel: Three = Subject("tool.cancel.{runner}.{tenant}.{attempt}")
"""Ends a started attempt; core request."""
tool_progress: Two = Subject("tool.progress.{tenant}.{conversation_id}")
"""Output of running calls; core, lossy by design."""
files: Three = Subject("file.{runner}.{tenant}.{conversation_id}")
"""File requests of clients to a workspace; core request."""
workspace_report: Three = Subject("workspace.report.{runner}.{tenant}.{conversation_id}")
"""A runner's report about a workspace; core request, served by agents."""
object_removal: One = Subject("object.remove.{runner}")
"""A runner requests the removal of objects that it stored; core request, served by agents."""
counted_usage: Fixed = Subject("usage.counted")
"""Requests for the usage of a tenant; core request between agents, served by the agent that counts."""
audit: Three = Subject("audit.{tenant}.{kind}.{done}")
"""The entries of the audit trail (stream AUDIT), by object and action: `key`, `created`."""
service_state: Fixed = Subject("service.state")
"""Requests for the state of every gateway, agent and workflows service; core, each process replies."""
workflow_run: Three = Subject("workflow.run.{name}.{tenant}.{conversation_id}")
"""Starts and resumes of workflow runs (stream WORKFLOWS); the name is `SERVED`."""
workflow_turn: Three = Subject("workflow.turn.{server}.{tenant}.{conversation_id}")
"""A turn of a workflow, sent to one process of its server; core request."""
workflow_cancel: Three = Subject("workflow.cancel.{server}.{tenant}.{conversation_id}")
"""Ends the turns of a run in all processes of a server; core."""
timer_set: Three = Subject("timer.set.{kind}.{tenant}.{timer_id}")
"""A scheduled message; purging the subject cancels it (stream TIMERS)."""
timer_fired: Three = Subject("timer.fired.{kind}.{tenant}.{timer_id}")
"""The subject on which a due timer's message appears (stream TIMERS, durable `timers`)."""
schedule_set: Two = Subject("schedule.set.{tenant}.{schedule_id}")
"""The timer of a schedule (stream TIMERS); setting it again replaces it."""
schedule_due: Two = Subject("schedule.due.{tenant}.{schedule_id}")
"""The subject on which the message of a due schedule appears (stream TIMERS, durable `schedules`)."""
dead: Two = Subject("dead.{stream}.{reason}")
"""Dead letters of `stream`, by reason (stream DEAD)."""
late_result: Fixed = Subject("dead.NOTES.late-result")
"""Results that arrived after another one was stored (stream DEAD); recorded only, never replayed."""
registry: Two = Subject("{kind}.{action}")
"""Registration of tools and workflows: `tool.register`, `workflow.register` …; core request."""
tenant_registry: Three = Subject("{kind}.{action}.{tenant}")
"""A registration that a tenant's own account published on `registry(kind, action)`.

The broker's import adds the tenant, so the sender cannot forge it.
"""
workflow_api: One = Subject("workflows.{action}")
"""Requests to the workflows service: list, categories, get, and start, which only checks."""


def pattern(name: str) -> Subject | None:
    """Return a pattern of this module by its name; None for a subject with a dot, which is no name."""
    return None if "." in name else globals()[name]


def named(name: str) -> str:
    """Return the filter for all subjects of a pattern in this module; a subject with a dot is unchanged."""
    found = pattern(name)
    return name if found is None else found.of_all


def stored(subject: str) -> str:
    """The server republishes here the messages that RESULTS accepted."""
    return f"stored.{subject}"


def api(tenant: str, *action: str) -> str:
    """The NATS API, served by every gateway."""
    return ".".join(("api", *map(_checked, (tenant, *action))))


def all_of(*head: str) -> str:
    """A filter for all subjects that begin with these tokens."""
    return f"{'.'.join(map(_checked, head))}.>"


def registering_tenant(subject: str) -> str | None:
    """Return the tenant whose account sent a registration; None for a service of the platform."""
    tokens = subject.split(".")
    return tokens[2] if len(tokens) == 3 else None
