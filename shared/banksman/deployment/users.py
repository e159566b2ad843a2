"""Users of NATS and their permissions, for all services in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from banksman.bus import names
from banksman.bus.names import (
    RUNNER_STORES,
    api,
    kv_stream,
    kv_subject,
    object_chunks,
    object_meta,
    object_stream,
    runner_api,
)
from banksman.contracts import subjects
from banksman.contracts.ids import check_token
from banksman.contracts.subjects import ANY, RUN_ACCOUNT, all_of

APP: Final = "APP"
RUN: Final = "RUN"
SYS: Final = "SYS"

GATEWAY: Final = "gateway"
AGENT: Final = "agent"
WORKFLOWS: Final = "workflows"
OPERATOR: Final = "operator"
TOOL_RUNNER: Final = "tool-runner"
GATEWAY_FILES: Final = "gateway-files"
AGENT_FILES: Final = "agent-files"
OPERATOR_FILES: Final = "operator-files"
SYSTEM: Final = "system"
EXAMPLE_SERVER: Final = "weather"
"""Id of the tool server of the mock weather tool, which the workflows service runs."""

_BUCKETS = (
    names.TOOLS,
    names.ASSISTANTS,
    names.PROMPTS,
    names.WORKFLOW_DEFINITIONS,
    names.CONVERSATIONS,
    names.OWNERS,
    names.RUNNERS,
    names.IDEMPOTENCY,
    names.USAGE,
    names.HEADS,
    names.DAMAGED,
)
_OF_GATEWAYS = (
    names.ASSISTANT_REVISIONS,
    names.KEYS,
    names.WEBHOOKS,
    names.DELIVERIES,
    names.MCP,
    names.TENANT_SECRETS,
    names.POLICIES,
    names.SCHEDULES,
)
"""Buckets that only gateways write, except that agents and workflows store renewed tokens in `mcp`."""
_STREAMS = (
    names.EVENTS,
    names.RUNS,
    names.APPROVALS,
    names.RESULTS,
    names.WORKFLOWS,
    names.TIMERS,
    names.DEAD,
    names.ADVISORIES,
)
WORKFLOW_REGISTRY: Final = ("register", "withdraw", "progress")
"""Actions of the workflow registry that a tenant's process may request."""
TOOL_REGISTRY: Final = ("register", "withdraw", "list")
"""Actions of the tool registry that a tool server may request."""

_EVERYTHING = (">",)
_FOLLOWS_RUNS = (all_of("live"), all_of("stored"), subjects.cancel_hint(ANY, ANY), subjects.service_state())
"""What agents and the workflows service may subscribe to, because both own runs."""
REMOVES_OBJECTS: Final = tuple(
    (verb, object_stream(store))
    for store in RUNNER_STORES
    for verb in ("STREAM.PURGE", "STREAM.INFO", "STREAM.MSG.GET")
)
"""Requests to the JetStream API of account RUN by which agents remove objects of runners."""


@dataclass(frozen=True, slots=True)
class User:
    """One NATS user, with its own key."""

    name: str
    account: str
    publish: tuple[str, ...]
    """Subjects it may publish to, in addition to its own inbox."""
    subscribe: tuple[str, ...]
    """Subjects it may subscribe to, in addition to its own inbox."""
    responds: bool = False
    """Whether it may publish one reply to each request it receives."""
    responds_repeatedly: bool = False
    """Whether it may publish several replies to a request."""

    @property
    def inbox_prefix(self) -> str:
        return inbox_prefix(self.name)


def inbox_prefix(user: str) -> str:
    return f"_INBOX_{user}"


def gateway() -> User:
    """Accepts requests, reads logs and stores decisions. It cannot append to a log or call a tool."""
    return User(
        GATEWAY,
        APP,
        publish=(
            subjects.run_work(ANY, ANY),
            subjects.run_signal(ANY, ANY),
            subjects.cancel_hint(ANY, ANY),
            subjects.approval_reply(ANY, ANY),
            subjects.approval_note(ANY, ANY, ANY),
            subjects.workflow_run(ANY, ANY, ANY),
            subjects.files(ANY, ANY, ANY),
            # Offers the MCP tools that an administrator approved.
            subjects.tenant_registry("tool", "offer", ANY),
            subjects.api(ANY, "error"),
            subjects.service_state(),
            subjects.audit(ANY, ANY, ANY),
            all_of("workflows"),
            all_of("dead"),
            *_writes(names.CONVERSATIONS, names.IDEMPOTENCY, names.ASSISTANTS, names.PROMPTS),
            *_writes(*_OF_GATEWAYS),
            *_delivers_webhooks(),
            subjects.schedule_set(ANY, ANY),
            *_pulls(names.TIMERS, names.SCHEDULES),
            # Each gateway adds the usage of passthrough; agents count the usage of runs under other keys.
            kv_subject(names.USAGE, "passthrough.>"),
            # An upload may precede the first call; then the gateway places the workspace.
            *_writes(names.OWNERS),
            *_inspects(),
            # Operators list dead letters, and replay those that a gateway may publish.
            *_reads(names.EVENTS, names.APPROVALS, names.RUNS, names.WORKFLOWS, names.DEAD, names.AUDIT),
            *_reads(object_stream(names.ARCHIVE)),
            api("STREAM.MSG.DELETE", names.DEAD),
            *_reads(*map(kv_stream, (*_BUCKETS, *_OF_GATEWAYS))),
        ),
        subscribe=(
            all_of("live"),
            all_of("delta"),
            subjects.tool_progress(ANY, ANY),
            subjects.approval_request(ANY, ANY),
            subjects.approval_reply(ANY, ANY),
            subjects.approval_note(ANY, ANY, ANY),
            all_of("stored"),
            all_of("api"),
            subjects.service_state(),
        ),
        responds=True,
        responds_repeatedly=True,
    )


def agent() -> User:
    """Drives runs and calls tools. As the janitor, it cleans up for owners that cannot."""
    return User(
        AGENT,
        APP,
        publish=(
            *_drives_runs(),
            *_writes(names.TOOLS, names.USAGE, names.HEADS),
            # Agents end the lease of a runner whose connection is closed.
            *_writes(names.RUNNERS),
            *_pulls(names.RUNS, names.AGENTS, names.SIGNALS),
            *_pulls(names.APPROVALS, names.APPROVAL_REPLIES),
            *_pulls(names.TIMERS, names.FIRED_TIMERS),
            # One agent follows all logs, and adds up the usage of each tenant over all agents for the others.
            subjects.counted_usage(),
            *(api("STREAM.PURGE", stream) for stream in _STREAMS),
            api("STREAM.MSG.DELETE", names.DEAD),
            api("STREAM.MSG.DELETE", names.APPROVALS),
            *_stores_objects(names.ARCHIVE, ">"),
            api("STREAM.PURGE", object_stream(names.ARCHIVE)),
            *(runner_api(verb, stream) for verb, stream in REMOVES_OBJECTS),
        ),
        subscribe=(
            *_FOLLOWS_RUNS,
            subjects.registry("tool", ANY),
            subjects.tenant_registry("tool", ANY, ANY),
            subjects.workspace_report(ANY, ANY, ANY),
            subjects.object_removal(ANY),
            subjects.counted_usage(),
            all_of("relay"),
        ),
        responds=True,
    )


def workflows() -> User:
    """Owns the logs of workflow runs, starts runs and calls tools."""
    return User(
        WORKFLOWS,
        APP,
        publish=(
            *_drives_runs(),
            subjects.workflow_turn(ANY, ANY, ANY),
            subjects.workflow_cancel(ANY, ANY, ANY),
            *_writes(names.WORKFLOW_DEFINITIONS),
            *_pulls(names.WORKFLOWS, ANY),
            api("CONSUMER.DURABLE.CREATE", names.WORKFLOWS, ANY),
            *(api("STREAM.PURGE", stream) for stream in (names.RESULTS, names.APPROVALS, names.TIMERS)),
        ),
        subscribe=(
            *_FOLLOWS_RUNS,
            all_of("workflows"),
            subjects.registry("workflow", ANY),
            subjects.tenant_registry("workflow", ANY, ANY),
        ),
        responds=True,
    )


def operator() -> User:
    """Provisions, inspects, backs up and replays dead letters. No service uses it."""
    return User(OPERATOR, APP, publish=_EVERYTHING, subscribe=_EVERYTHING, responds=True)


def operator_files() -> User:
    return User(OPERATOR_FILES, RUN, publish=_EVERYTHING, subscribe=_EVERYTHING, responds=True)


def tool_runner(runner: str | None = None) -> User:
    """Receives the calls of one runner and stores its lease.

    Its starts and results reach an agent, which stores them; it has no other permission in APP. In both
    object stores it reads all objects, and stores its own; agents remove them.

    Args:
        runner: Id of the runner; None for a user that all runners share because their ids are not known in
            advance. Runners with a shared user can act for each other.
    """
    token = ANY if runner is None else check_token(runner, "runner")
    return User(
        TOOL_RUNNER if runner is None else f"{TOOL_RUNNER}-{runner}",
        RUN,
        publish=(
            subjects.tool_started(ANY, ANY),
            subjects.tool_result(ANY, ANY),
            subjects.tool_progress(ANY, ANY),
            kv_subject(names.RUNNERS, token),
            subjects.workspace_report(token, ANY, ANY),
            subjects.late_result(),
            subjects.object_removal(token),
            *(subject for store in RUNNER_STORES for subject in _stores_objects(store, f"{token}.>")),
        ),
        subscribe=(
            subjects.tool_call(token, ANY, ANY),
            subjects.tool_cancel(token, ANY, ANY),
            subjects.files(token, ANY, ANY),
            subjects.stored_acks(RUN_ACCOUNT, token),
        ),
        responds=True,
    )


def tool_server(server: str) -> User:
    """Serves tools to the models of all tenants: receives their calls and stores their results."""
    check_token(server, "server")
    return User(
        f"tool-server-{server}",
        RUN,
        publish=(
            *(subjects.registry("tool", action) for action in TOOL_REGISTRY),
            subjects.tool_started(ANY, ANY),
            subjects.tool_result(ANY, ANY),
            subjects.tool_progress(ANY, ANY),
            kv_subject(names.RUNNERS, f"{server}.{ANY}"),
        ),
        subscribe=(
            subjects.tool_call(server, ANY, ANY),
            subjects.tool_cancel(server, ANY, ANY),
            subjects.stored_acks(RUN_ACCOUNT, server),
        ),
        responds=True,
    )


def gateway_files() -> User:
    """Reads whole outputs for downloads."""
    return User(GATEWAY_FILES, RUN, publish=_reads(object_stream(names.OUTPUTS)), subscribe=())


def agent_files() -> User:
    """Reads outputs. As the janitor, it removes outputs and workspaces of deleted conversations."""
    streams = tuple(map(object_stream, RUNNER_STORES))
    purges = (api("STREAM.PURGE", stream) for stream in streams)
    return User(AGENT_FILES, RUN, publish=(*_reads(*streams), *purges), subscribe=())


def system() -> User:
    """The user of the system account, for monitoring over NATS. No service uses it."""
    return User(SYSTEM, SYS, publish=_EVERYTHING, subscribe=_EVERYTHING)


def all_users(runners: tuple[str, ...] = (), tool_servers: tuple[str, ...] = ()) -> tuple[User, ...]:
    """Return all users except tenants' users: one per runner id, or a single one that all runners share."""
    services = (gateway(), agent(), workflows(), operator(), gateway_files(), agent_files(), operator_files())
    return (
        *services,
        *([tool_runner(runner) for runner in runners] or [tool_runner()]),
        *(tool_server(server) for server in tool_servers),
        system(),
    )


def _drives_runs() -> tuple[str, ...]:
    """Return what agents and the workflows service may publish, because both own runs."""
    return (
        subjects.conversation(ANY, ANY),
        subjects.delta(ANY, ANY),
        subjects.run_work(ANY, ANY),
        subjects.run_signal(ANY, ANY),
        subjects.cancel_hint(ANY, ANY),
        subjects.approval_request(ANY, ANY),
        subjects.approval_reply(ANY, ANY),
        # A user's reply resumes the run of a workflow, and agents record replies.
        subjects.workflow_run(ANY, ANY, ANY),
        subjects.tool_call(ANY, ANY, ANY),
        subjects.tool_cancel(ANY, ANY, ANY),
        subjects.tool_started(ANY, ANY),
        subjects.tool_result(ANY, ANY),
        # The token of an MCP server is renewed through a runner.
        subjects.files(ANY, ANY, ANY),
        subjects.timer_set(ANY, ANY, ANY),
        all_of("dead"),
        *_writes(names.CONVERSATIONS, names.OWNERS, names.DAMAGED, names.MCP),
        *_stores_objects(names.SNAPSHOTS, ANY),
        api("STREAM.PURGE", object_stream(names.SNAPSHOTS)),
        *_inspects(),
        *_reads(ANY),
        # They compare the logs with the record of their ends before they work.
        api("CONSUMER.CREATE", names.EVENTS, ANY),
        api("CONSUMER.MSG.NEXT", names.EVENTS, ANY),
    )


def _inspects() -> tuple[str, ...]:
    """Return the subjects of the requests of `streams.verify`."""
    return (api("STREAM.INFO", ANY), api("CONSUMER.INFO", ANY, ANY))


def _reads(*streams: str) -> tuple[str, ...]:
    verbs = ("STREAM.MSG.GET", "DIRECT.GET")
    return tuple(api(verb, stream) for stream in streams for verb in verbs)


def _writes(*buckets: str) -> tuple[str, ...]:
    return tuple(kv_subject(bucket, ">") for bucket in buckets)


def _stores_objects(store: str, own: str) -> tuple[str, ...]:
    """Return the subjects of reads of a store, and of writes of the objects below the tokens `own`."""
    return (
        object_chunks(store, own),
        object_meta(store, own),
        *_reads(object_stream(store)),
        api("STREAM.INFO", object_stream(store)),
    )


def _delivers_webhooks() -> tuple[str, ...]:
    return (
        subjects.webhook_delivery(ANY, ANY),
        *_pulls(names.WEBHOOK_QUEUE, names.WEBHOOKS),
        # A gateway follows the logs of the tenants that have webhooks.
        api("CONSUMER.DURABLE.CREATE", names.EVENTS, names.WEBHOOKS),
        *_pulls(names.EVENTS, names.WEBHOOKS),
    )


def _pulls(stream: str, *durables: str) -> tuple[str, ...]:
    return tuple(
        subject
        for durable in durables
        for subject in (api("CONSUMER.MSG.NEXT", stream, durable), names.acknowledgements(stream, durable))
    )
