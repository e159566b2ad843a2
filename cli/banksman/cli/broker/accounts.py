"""The accounts of nats-server: their users, and the few subjects that cross between accounts.

Permissions alone do not separate users of one account, because the server does not check the reply subject of
a permitted request. Users that could forge messages are therefore in another account: a runner in RUN cannot
address an inbox or a stream of APP. Only the subjects below cross; the server creates their reply subjects.
"""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from banksman.bus import names
from banksman.bus.names import api, kv_subject, runner_api
from banksman.cli.state import write_private
from banksman.contracts import subjects
from banksman.contracts.ids import check_token
from banksman.contracts.subjects import ANY, RUN_ACCOUNT, TENANT_ACCOUNT
from banksman.deployment.topology import StorageBudget
from banksman.deployment.users import (
    APP,
    REMOVES_OBJECTS,
    RUN,
    SYS,
    TOOL_REGISTRY,
    WORKFLOW_REGISTRY,
    User,
    all_users,
)

# The package has no type annotations and no stubs.
_nkeys: Any = importlib.import_module("nkeys")


@dataclass(frozen=True, slots=True)
class Variable:
    """A value that the server reads from its environment."""

    name: str


PublicKeys = Mapping[str, str | Variable]
"""Maps user names to public keys (`U…`), or to variables of the server's environment that hold them."""

_RUN_PER_MILLE = 150
MAX_PAYLOAD_BYTES = 1024 * 1024
TENANT_CONNECTIONS = 64
"""Maximum connections of one tenant: clients and processes of tool servers together."""
TENANT_SUBSCRIPTIONS = 10_000

_RELAY_THRESHOLD = "10s"
"""How long the server keeps the reply subject of a message to the relay. Agents reply within five seconds, or
not at all if the publisher receives the acknowledgement directly."""
_CALL_THRESHOLD = "5s"
"""How long the server keeps the reply subject of a request for a call. Owners wait two seconds, and a tool
server whose start is stored does not reply. With the server's default of two minutes, there would be tens of
thousands of these subjects under load."""


@dataclass(frozen=True, slots=True)
class StorageLimits:
    """Bytes of all streams of one server, and of the streams of each account on all servers."""

    server: int | Variable
    app: int | Variable
    run: int | Variable

    @classmethod
    def of(cls, budget: StorageBudget, servers: int) -> StorageLimits:
        # The server charges each replica of a stream to the account.
        all_servers = StorageBudget(budget.total_bytes * servers)
        run_bytes = all_servers.share(_RUN_PER_MILLE)
        return cls(budget.total_bytes, all_servers.total_bytes - run_bytes, run_bytes)

    def environment(self) -> dict[str, str]:
        """Return the variables that a configuration with `STORAGE_VARIABLES` reads."""
        values = zip(astuple(STORAGE_VARIABLES), astuple(self), strict=True)
        return {variable[0]: str(value) for variable, value in values}


STORAGE_VARIABLES = StorageLimits(
    *(Variable(f"BANKSMAN_STORAGE_{part}") for part in ("SERVER", "APP", "RUN"))
)

MONITORING_VARIABLE = Variable("BANKSMAN_MONITORING_PATH")
"""The secret path of the monitoring endpoints, which `banksman keys deployment` chooses."""


@dataclass(frozen=True, slots=True)
class Tenant:
    tenant: str
    tool_servers: tuple[str, ...] = ()
    """Ids of its tool servers. `*` allows any id; its processes can then also receive all calls of the
    tenant's conversations, and reply to them in place of runners."""

    @property
    def account(self) -> str:
        return f"TENANT_{self.tenant}"

    @property
    def user(self) -> str:
        return f"tenant-{self.tenant}"


def user_names(
    *,
    runners: tuple[str, ...] = (),
    tenants: tuple[Tenant, ...] = (),
    tool_servers: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Return the names of all users, each of which needs a key."""
    users = all_users(runners, tool_servers)
    return (*(user.name for user in users), *(tenant.user for tenant in tenants))


def accounts(
    keys: PublicKeys,
    storage: StorageLimits,
    users: tuple[User, ...],
    tenants: tuple[Tenant, ...],
    tool_servers: tuple[str, ...],
) -> dict[str, Any]:
    """Return the section `accounts` of a server's configuration; for the arguments see `render_config`."""
    relayed = _run_relayed(tool_servers)

    def members(account: str) -> list[dict[str, Any]]:
        return [_user(user, keys[user.name]) for user in users if user.account == account]

    return {
        APP: {
            "jetstream": {"max_file": storage.app},
            "users": members(APP),
            "exports": [
                *_exported_to_run(tool_servers, relayed),
                *(export for one in tenants for export in _exported_to(one)),
            ],
            "imports": [*_imported_from_run(), *(entry for one in tenants for entry in _imported_from(one))],
        },
        RUN: {
            "jetstream": {"max_file": storage.run},
            "users": members(RUN),
            "exports": _run_exports(),
            "imports": [
                *(_service(APP, subject) for subject in (*_RUN_REQUESTS, *_registry_requests(tool_servers))),
                *(_relayed(subject, to) for subject, to in relayed),
                _stream(APP, subjects.stored_acks(RUN_ACCOUNT, ANY)),
            ],
        },
        SYS: {"users": members(SYS)},
        **{one.account: _tenant(one, keys[one.user]) for one in tenants},
    }


def _user(user: User, key: str | Variable) -> dict[str, Any]:
    inbox = f"{user.inbox_prefix}.>"
    permissions: dict[str, Any] = {
        "publish": {"allow": [inbox, *user.publish]},
        "subscribe": {"allow": [inbox, *user.subscribe]},
    }
    if user.responds:
        permissions["allow_responses"] = {"max": -1 if user.responds_repeatedly else 1, "expires": "5m"}
    return {"nkey": key, "permissions": permissions}


_RUN_CALLS = subjects.tool_call(ANY, ANY, ANY)
_RUN_SERVES = (
    subjects.tool_cancel(ANY, ANY, ANY),
    subjects.files(ANY, ANY, ANY),
)
_RUN_REQUESTS = (
    kv_subject(names.RUNNERS, ANY),
    subjects.workspace_report(ANY, ANY, ANY),
    subjects.object_removal(ANY),
)
"""Leases of runners and requests to agents. The acknowledgement is the reply of a service."""
_RUN_PUBLISHES = subjects.tool_progress(ANY, ANY)


def _registry_requests(tool_servers: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(subjects.registry("tool", action) for action in TOOL_REGISTRY) if tool_servers else ()


def _run_relayed(tool_servers: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the relay's subject and the users' subject of each message that agents store for account RUN."""
    return (
        (subjects.relayed_start(RUN_ACCOUNT, ANY, ANY), subjects.tool_started(ANY, ANY)),
        (subjects.relayed_result(RUN_ACCOUNT, ANY, ANY), subjects.tool_result(ANY, ANY)),
        (subjects.relayed_late_result(), subjects.late_result()),
        *(
            (subjects.relayed_lease(server, ANY), kv_subject(names.RUNNERS, f"{server}.{ANY}"))
            for server in tool_servers
        ),
    )


def _exported_to_run(
    tool_servers: tuple[str, ...], relayed: tuple[tuple[str, str], ...]
) -> list[dict[str, Any]]:
    used = (*_RUN_REQUESTS, *_registry_requests(tool_servers))
    return [
        *({"service": subject, "accounts": [RUN]} for subject in used),
        *(_expiring_export(subject, RUN, _RELAY_THRESHOLD) for subject, _ in relayed),
        {"stream": subjects.stored_acks(RUN_ACCOUNT, ANY), "accounts": [RUN]},
    ]


def _expiring_export(subject: str, account: str, threshold: str) -> dict[str, Any]:
    return {"service": subject, "accounts": [account], "response_threshold": threshold}


def _imported_from_run() -> list[dict[str, Any]]:
    served = (_service(RUN, subject) for subject in (_RUN_CALLS, *_RUN_SERVES))
    removes = ({**_service(RUN, api(*request)), "to": runner_api(*request)} for request in REMOVES_OBJECTS)
    return [*served, *removes, _stream(RUN, _RUN_PUBLISHES)]


def _run_exports() -> list[dict[str, Any]]:
    served = (*_RUN_SERVES, *(api(*request) for request in REMOVES_OBJECTS))
    services = [{"service": subject, "accounts": [APP]} for subject in served]
    calls = _expiring_export(_RUN_CALLS, APP, _CALL_THRESHOLD)
    return [calls, *services, {"stream": _RUN_PUBLISHES, "accounts": [APP]}]


def _tenant(one: Tenant, key: str | Variable) -> dict[str, Any]:
    t = one.tenant
    return {
        "users": [{"nkey": key}],
        "limits": {
            "max_connections": TENANT_CONNECTIONS,
            "max_subscriptions": TENANT_SUBSCRIPTIONS,
            "max_payload": MAX_PAYLOAD_BYTES,
        },
        "exports": [
            *(_expiring_export(subject, APP, _CALL_THRESHOLD) for subject in _tenant_calls(one)),
            *({"service": subject, "accounts": [APP]} for subject in _tenant_serves(one)),
            {"stream": subjects.tool_progress(t, ANY), "accounts": [APP]},
        ],
        "imports": [
            _service(APP, subjects.all_of("api", t)),
            *(_relayed(subject, to) for subject, to in _tenant_relayed(one)),
            *(_stream(APP, subject) for subject in _tenant_subscribes(t)),
            *(
                _relayed(subjects.tenant_registry(kind, action, t), subjects.registry(kind, action))
                for kind, action in _REGISTRATIONS
            ),
        ],
    }


def _exported_to(one: Tenant) -> list[dict[str, Any]]:
    registry = [subjects.tenant_registry(kind, action, one.tenant) for kind, action in _REGISTRATIONS]
    api = subjects.all_of("api", one.tenant)
    return [
        # A replay has many replies; without `stream` the server delivers only the first one.
        {"service": api, "response": "stream", "accounts": [one.account]},
        *(_expiring_export(subject, one.account, _RELAY_THRESHOLD) for subject, _ in _tenant_relayed(one)),
        *({"service": subject, "accounts": [one.account]} for subject in registry),
        *({"stream": subject, "accounts": [one.account]} for subject in _tenant_subscribes(one.tenant)),
    ]


def _imported_from(one: Tenant) -> list[dict[str, Any]]:
    return [
        *(_service(one.account, subject) for subject in (*_tenant_calls(one), *_tenant_serves(one))),
        _stream(one.account, subjects.tool_progress(one.tenant, ANY)),
    ]


_REGISTRATIONS = (
    *(("tool", action) for action in TOOL_REGISTRY),
    *(("workflow", action) for action in WORKFLOW_REGISTRY),
)


def _tenant_relayed(one: Tenant) -> tuple[tuple[str, str], ...]:
    t = one.tenant
    return (
        (subjects.relayed_start(TENANT_ACCOUNT, t, ANY), subjects.tool_started(t, ANY)),
        (subjects.relayed_result(TENANT_ACCOUNT, t, ANY), subjects.tool_result(t, ANY)),
        *(
            (subjects.tenant_lease(t, server, ANY), kv_subject(names.RUNNERS, f"{server}.{t}.{ANY}"))
            for server in one.tool_servers
        ),
    )


def _tenant_subscribes(tenant: str) -> tuple[str, ...]:
    return (
        subjects.live(tenant, ANY),
        subjects.delta(tenant, ANY),
        subjects.approval_request(tenant, ANY),
        subjects.api(tenant, "error"),
        subjects.stored_acks(TENANT_ACCOUNT, tenant),
    )


def _tenant_calls(one: Tenant) -> tuple[str, ...]:
    check_token(one.tenant, "tenant")
    return tuple(subjects.tool_call(server, one.tenant, ANY) for server in one.tool_servers)


def _tenant_serves(one: Tenant) -> tuple[str, ...]:
    return tuple(
        subject
        for server in one.tool_servers
        for subject in (
            subjects.tool_cancel(server, one.tenant, ANY),
            subjects.workflow_turn(server, one.tenant, ANY),
            subjects.workflow_cancel(server, one.tenant, ANY),
        )
    )


def _service(account: str, subject: str) -> dict[str, Any]:
    return {"service": {"account": account, "subject": subject}}


def _relayed(subject: str, published_on: str) -> dict[str, Any]:
    return {**_service(APP, subject), "to": published_on}


def _stream(account: str, subject: str) -> dict[str, Any]:
    return {"stream": {"account": account, "subject": subject}}


def generate_keys(directory: Path, users: Iterable[str]) -> dict[str, str]:
    """Create `{user}.nk`, readable only by its owner, for each user without a key; return the public keys."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {user: _key(seed_file(directory, user)) for user in users}


def seed_file(directory: Path, user: str) -> Path:
    return directory / f"{user}.nk"


def key_variable(user: str) -> str:
    """Return the environment variable of a user's public key, for a configuration without literal keys."""
    return f"BANKSMAN_NKEY_{user.upper().replace('-', '_')}"


def _key(file: Path) -> str:
    if not file.exists():
        write_private(file, _nkeys.encode_seed(secrets.token_bytes(32), _nkeys.PREFIX_BYTE_USER))
    pair = _nkeys.from_seed(bytearray(file.read_bytes().strip()))
    return str(pair.public_key, "ascii")
