"""Functions that build every subject. No other module contains a subject as a literal.

Tokens are tenant, conversation, attempt (`call-number`), approval, and runner (or tool server). Each is
checked, so no id can add a token or a wildcard to a subject.
"""

from __future__ import annotations

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


def _join(*parts: str) -> str:
    return ".".join(part if part == ANY else check_token(part, "subject token") for part in parts)


def conversation(tenant: str, conversation_id: str) -> str:
    """The log of one conversation (stream EVENTS)."""
    return _join("conversation", tenant, conversation_id)


def live(tenant: str, conversation_id: str) -> str:
    """The server republishes each stored commit here."""
    return _join("live", tenant, conversation_id)


def delta(tenant: str, conversation_id: str) -> str:
    """Token deltas; core, lossy by design."""
    return _join("delta", tenant, conversation_id)


def run_work(tenant: str, conversation_id: str) -> str:
    """Messages that start and resume runs (stream RUNS, durable `agents`)."""
    return _join("run", "work", tenant, conversation_id)


def run_signal(tenant: str, conversation_id: str) -> str:
    """Cancel, steer, rename and delete (stream RUNS, durable `signals`)."""
    return _join("run", "signal", tenant, conversation_id)


def run_messages(tenant: str, conversation_id: str) -> str:
    """All messages of stream RUNS for a conversation."""
    return _join("run", ANY, tenant, conversation_id)


def cancel_hint(tenant: str, conversation_id: str) -> str:
    """A hint that wakes an owner at once; core. The signal itself is in RUNS."""
    return _join("cancel", tenant, conversation_id)


def webhook_delivery(tenant: str, webhook_id: str) -> str:
    """Messages to deliver to a webhook (stream WEBHOOKS, durable `webhooks`)."""
    return _join("webhook", tenant, webhook_id)


def approval_request(tenant: str, approval_id: str) -> str:
    """One approval request (stream APPROVALS)."""
    return _join("approval", "request", tenant, approval_id)


def approval_reply(tenant: str, approval_id: str) -> str:
    """The one reply to an approval request (stream APPROVALS)."""
    return _join("approval", "reply", tenant, approval_id)


def approval_note(tenant: str, approval_id: str, name: str) -> str:
    """A write-once record of an open approval request (stream APPROVALS).

    Its name is `first` for the first of two approvals, `aside-{digest of the user}` if a user set the request
    aside, and `link-{digest of the link}` for the use of a link.
    """
    return _join("approval", "note", tenant, approval_id, name)


def tool_started(tenant: str, attempt: str) -> str:
    """The one start of an attempt (stream RESULTS)."""
    return _join("tool", "started", tenant, attempt)


def tool_result(tenant: str, attempt: str) -> str:
    """The one result of an attempt (stream RESULTS)."""
    return _join("tool", "result", tenant, attempt)


def tool_slots(tenant: str, attempt: str) -> str:
    """Both slots of an attempt."""
    return _join("tool", ANY, tenant, attempt)


def stored(subject: str) -> str:
    """The server republishes here the messages that RESULTS accepted."""
    return f"stored.{subject}"


def stored_ack(source: str, owner: str, inbox: str, number: str, agent: str, request: str) -> str:
    """The acknowledgement of a message that an agent stored for a runner or tool server, sent to both.

    The agent chooses the owner: the tenant whose account sent the message, or in account RUN the holder of
    the ticket. The publisher chooses its inbox and the number of the message.
    """
    return stored(_join("ack", source, owner, inbox, number, agent, request))


def stored_acks(source: str, owner: str) -> str:
    """All acknowledgements for one owner. No user may publish there."""
    return stored_ack(source, owner, ANY, ANY, ANY, ANY)


def relayed_start(source: str, tenant: str, attempt: str) -> str:
    """A start that a runner or tool server published on `tool_started`, served by agents; core request.

    The broker maps the messages of other accounts to the relay. `source` is `RUN_ACCOUNT`, or
    `TENANT_ACCOUNT` for the account of that tenant, which cannot name another one.
    """
    return _join("relay", source, "started", tenant, attempt)


def relayed_result(source: str, tenant: str, attempt: str) -> str:
    """A result that a runner or tool server published on `tool_result`, served by agents."""
    return _join("relay", source, "result", tenant, attempt)


def relayed_late_result() -> str:
    """A late result that a runner published on `late_result`, served by agents."""
    return _join("relay", RUN_ACCOUNT, "late")


def relayed_lease(server: str, epoch: str, tenant: str | None) -> str:
    """The lease of a process of a tool server; `tenant` is None in account RUN."""
    if tenant is None:
        return _join("relay", RUN_ACCOUNT, "lease", server, epoch)
    return _join("relay", TENANT_ACCOUNT, "lease", tenant, server, epoch)


def tool_call(runner: str, tenant: str, conversation_id: str) -> str:
    """A call to one runner or tool server; core request."""
    return _join("tool", "call", runner, tenant, conversation_id)


def tool_cancel(runner: str, tenant: str, attempt: str) -> str:
    """Ends a started attempt; core request."""
    return _join("tool", "cancel", runner, tenant, attempt)


def tool_progress(tenant: str, conversation_id: str) -> str:
    """Output of running calls; core, lossy by design."""
    return _join("tool", "progress", tenant, conversation_id)


def files(runner: str, tenant: str, conversation_id: str) -> str:
    """File requests of clients to a workspace; core request."""
    return _join("file", runner, tenant, conversation_id)


def workspace_report(runner: str, tenant: str, conversation_id: str) -> str:
    """A runner's report about a workspace; core request, served by agents."""
    return _join("workspace", "report", runner, tenant, conversation_id)


def object_removal(runner: str) -> str:
    """A runner requests the removal of objects that it stored; core request, served by agents."""
    return _join("object", "remove", runner)


def counted_usage() -> str:
    """Requests for the usage of a tenant; core request between agents, served by the agent that counts."""
    return _join("usage", "counted")


def audit(tenant: str, kind: str, done: str) -> str:
    """The entries of the audit trail (stream AUDIT), by object and action: `key`, `created`."""
    return _join("audit", tenant, kind, done)


def service_state() -> str:
    """Requests for the state of every gateway, agent and workflows service; core, each process replies."""
    return _join("service", "state")


def workflow_run(name: str, tenant: str, conversation_id: str) -> str:
    """Starts and resumes of workflow runs (stream WORKFLOWS); the name is `SERVED`."""
    return _join("workflow", "run", name, tenant, conversation_id)


def workflow_turn(server: str, tenant: str, conversation_id: str) -> str:
    """A turn of a workflow, sent to one process of its server; core request."""
    return _join("workflow", "turn", server, tenant, conversation_id)


def workflow_cancel(server: str, tenant: str, conversation_id: str) -> str:
    """Ends the turns of a run in all processes of a server; core."""
    return _join("workflow", "cancel", server, tenant, conversation_id)


def timer_set(kind: str, tenant: str, timer_id: str) -> str:
    """A scheduled message; purging the subject cancels it (stream TIMERS)."""
    return _join("timer", "set", kind, tenant, timer_id)


def timer_fired(kind: str, tenant: str, timer_id: str) -> str:
    """The subject on which a due timer's message appears (stream TIMERS, durable `timers`)."""
    return _join("timer", "fired", kind, tenant, timer_id)


def schedule_set(tenant: str, schedule_id: str) -> str:
    """The timer of a schedule (stream TIMERS); setting it again replaces it."""
    return _join("schedule", "set", tenant, schedule_id)


def schedule_due(tenant: str, schedule_id: str) -> str:
    """The subject on which the message of a due schedule appears (stream TIMERS, durable `schedules`)."""
    return _join("schedule", "due", tenant, schedule_id)


def dead(stream: str, reason: str) -> str:
    """Dead letters of `stream`, by reason (stream DEAD)."""
    return _join("dead", stream, reason)


def late_result() -> str:
    """Results that arrived after another one was stored (stream DEAD); recorded only, never replayed."""
    return dead("NOTES", "late-result")


def api(tenant: str, *action: str) -> str:
    """The NATS API, served by every gateway."""
    return _join("api", tenant, *action)


def registry(kind: str, action: str) -> str:
    """Registration of tools and workflows: `tool.register`, `workflow.register` …; core request."""
    return _join(kind, action)


def tenant_registry(kind: str, action: str, tenant: str) -> str:
    """A registration that a tenant's own account published on `registry(kind, action)`.

    The broker's import adds the tenant, so the sender cannot forge it.
    """
    return _join(kind, action, tenant)


def registering_tenant(subject: str) -> str | None:
    """Return the tenant whose account sent a registration; None for a service of the platform."""
    tokens = subject.split(".")
    return tokens[2] if len(tokens) == 3 else None


def workflow_api(action: str) -> str:
    """Requests to the workflows service: list, categories, get, and start, which only checks."""
    return _join("workflows", action)


def all_of(*head: str) -> str:
    """A filter for all subjects that begin with these tokens."""
    return f"{_join(*head)}.>"
