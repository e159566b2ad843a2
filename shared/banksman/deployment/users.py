"""Users of NATS and their permissions, for all services in one place; of services in APP in `users.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from banksman.bus import names
from banksman.contracts import subjects
from banksman.contracts.ids import check_token
from banksman.contracts.subjects import ANY, RUN_ACCOUNT

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

WORKFLOW_REGISTRY: Final = ("register", "withdraw", "progress")
"""Actions of the workflow registry that a tenant's process may request."""
TOOL_REGISTRY: Final = ("register", "withdraw", "list")
"""Actions of the tool registry that a tool server may request."""

_EVERYTHING = (">",)
_TABLES: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
REMOVES_OBJECTS: Final = tuple(
    (verb, names.object_stream(store))
    for store in names.RUNNER_STORES
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


def _service(name: str, *common: str) -> User:
    """Return the user of a service; `common` are the tables of what it may do like others."""
    tables = [_TABLES[table] for table in (*common, name)]
    return User(
        name,
        APP,
        publish=tuple(dict.fromkeys(subject for table in tables for subject in _published(table))),
        subscribe=tuple(subjects.named(one) for table in tables for one in table["subscribe"]),
        responds=True,
        responds_repeatedly=_TABLES[name].get("responds_repeatedly", False),
    )


def _published(table: dict[str, Any]) -> Iterator[str]:
    yield from map(subjects.named, table["publish"])
    yield from (names.kv_subject(bucket, ">") for bucket in table["writes"])
    yield from _reads(*table.get("reads", ()))
    for store, own in table.get("stores", {}).items():
        yield from _stores_objects(store, own)
    for stream, durables in table.get("pulls", {}).items():
        for durable in durables:
            yield names.api("CONSUMER.MSG.NEXT", stream, durable)
            yield names.acknowledgements(stream, durable)
    for verb, targets in table["requests"].items():
        yield from (names.api(verb, target) for target in targets)


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
            names.kv_subject(names.RUNNERS, token),
            subjects.workspace_report(token, ANY, ANY),
            subjects.late_result(),
            subjects.object_removal(token),
            *(subject for store in names.RUNNER_STORES for subject in _stores_objects(store, f"{token}.>")),
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
            names.kv_subject(names.RUNNERS, f"{server}.{ANY}"),
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
    return User(GATEWAY_FILES, RUN, publish=_reads(names.object_stream(names.OUTPUTS)), subscribe=())


def agent_files() -> User:
    """Reads outputs. As the janitor, it removes outputs and workspaces of deleted conversations."""
    streams = tuple(map(names.object_stream, names.RUNNER_STORES))
    purges = (names.api("STREAM.PURGE", stream) for stream in streams)
    return User(AGENT_FILES, RUN, publish=(*_reads(*streams), *purges), subscribe=())


def system() -> User:
    """The user of the system account, for monitoring over NATS. No service uses it."""
    return User(SYSTEM, SYS, publish=_EVERYTHING, subscribe=_EVERYTHING)


def all_users(runners: tuple[str, ...] = (), tool_servers: tuple[str, ...] = ()) -> tuple[User, ...]:
    """Return all users except tenants' users: one per runner id, or a single one that all runners share."""
    owners = (_service(AGENT, "owners"), _service(WORKFLOWS, "owners"))
    services = (_service(GATEWAY), *owners, operator(), gateway_files(), agent_files(), operator_files())
    return (
        *services,
        *([tool_runner(runner) for runner in runners] or [tool_runner()]),
        *(tool_server(server) for server in tool_servers),
        system(),
    )


def _reads(*streams: str) -> tuple[str, ...]:
    verbs = ("STREAM.MSG.GET", "DIRECT.GET")
    return tuple(names.api(verb, stream) for stream in streams for verb in verbs)


def _stores_objects(store: str, own: str) -> tuple[str, ...]:
    """Return the subjects of reads of a store, and of writes of the objects below the tokens `own`."""
    return (
        names.object_chunks(store, own),
        names.object_meta(store, own),
        *_reads(names.object_stream(store)),
        names.api("STREAM.INFO", names.object_stream(store)),
    )
