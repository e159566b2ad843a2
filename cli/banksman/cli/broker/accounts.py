"""The accounts of nats-server: their users, and the few subjects that cross between accounts.

Permissions alone do not separate users of one account, because the server does not check the reply subject of
a permitted request. Users that could forge messages are therefore in another account: a runner in RUN cannot
address an inbox or a stream of APP. Only the subjects below cross; the server creates their reply subjects.
"""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from banksman.bus import names
from banksman.bus.names import api, kv_subject, runner_api
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
from banksman.runtime.durable_files import create_file

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
    *, runners: tuple[str, ...] = (), tenants: tuple[Tenant, ...] = (), tool_servers: tuple[str, ...] = ()
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
    crossings = (*_of_run(tool_servers), *(one for tenant in tenants for one in _of_tenant(tenant)))

    def account(name: str, **own: Any) -> dict[str, Any]:
        return {
            **own,
            "exports": [one.exported() for one in crossings if one.source == name],
            "imports": [one.imported() for one in crossings if one.target == name],
        }

    def members(account: str) -> list[dict[str, Any]]:
        return [_user(user, keys[user.name]) for user in users if user.account == account]

    limits = {
        "max_connections": TENANT_CONNECTIONS,
        "max_subscriptions": TENANT_SUBSCRIPTIONS,
        "max_payload": MAX_PAYLOAD_BYTES,
    }
    return {
        APP: account(APP, jetstream={"max_file": storage.app}, users=members(APP)),
        RUN: account(RUN, jetstream={"max_file": storage.run}, users=members(RUN)),
        SYS: {"users": members(SYS)},
        **{
            one.account: account(one.account, users=[{"nkey": keys[one.user]}], limits=limits)
            for one in tenants
        },
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """A subject that one account serves or publishes, and that another one requests or receives."""

    source: str
    """The account that exports it."""
    target: str
    """The account that imports it."""
    subject: str
    kind: Literal["service", "stream"] = "service"
    to: str | None = None
    """The subject by which the importing account names it; None for the same."""
    threshold: str | None = None
    """How long the server keeps the reply subject of a request; None for its default."""
    many_replies: bool = False
    """Whether a request has several replies. Without it, the server delivers only the first one."""

    def exported(self) -> dict[str, Any]:
        options = {"response_threshold": self.threshold} if self.threshold else {}
        options |= {"response": "stream"} if self.many_replies else {}
        return {self.kind: self.subject, **options, "accounts": [self.target]}

    def imported(self) -> dict[str, Any]:
        renamed = {"to": self.to} if self.to else {}
        return {self.kind: {"account": self.source, "subject": self.subject}, **renamed}


def _of_run(tool_servers: tuple[str, ...]) -> Iterator[Crossing]:
    """Yield what crosses between APP and RUN: calls to runners, and what runners request and publish."""
    to_run, from_run = partial(Crossing, source=APP, target=RUN), partial(Crossing, source=RUN, target=APP)
    # Leases of runners and requests to agents. The acknowledgement is the reply of a service.
    yield to_run(subject=kv_subject(names.RUNNERS, ANY))
    yield to_run(subject=subjects.workspace_report(ANY, ANY, ANY))
    yield to_run(subject=subjects.object_removal(ANY))
    for action in TOOL_REGISTRY if tool_servers else ():
        yield to_run(subject=subjects.registry("tool", action))
    relayed = [
        (subjects.relayed_start(RUN_ACCOUNT, ANY, ANY), subjects.tool_started(ANY, ANY)),
        (subjects.relayed_result(RUN_ACCOUNT, ANY, ANY), subjects.tool_result(ANY, ANY)),
        (subjects.relayed_late_result(), subjects.late_result()),
    ]
    for server in tool_servers:
        lease = kv_subject(names.RUNNERS, f"{server}.{ANY}")
        relayed.append((subjects.relayed_lease(server, ANY), lease))
    for subject, published_on in relayed:
        yield to_run(subject=subject, to=published_on, threshold=_RELAY_THRESHOLD)
    yield to_run(subject=subjects.stored_acks(RUN_ACCOUNT, ANY), kind="stream")
    yield from_run(subject=subjects.tool_call(ANY, ANY, ANY), threshold=_CALL_THRESHOLD)
    yield from_run(subject=subjects.tool_cancel(ANY, ANY, ANY))
    yield from_run(subject=subjects.files(ANY, ANY, ANY))
    for request in REMOVES_OBJECTS:
        yield from_run(subject=api(*request), to=runner_api(*request))
    yield from_run(subject=subjects.tool_progress(ANY, ANY), kind="stream")


def _of_tenant(one: Tenant) -> Iterator[Crossing]:
    """Yield what crosses between APP and a tenant's account: the NATS API, live events, tools, workflows."""
    t = check_token(one.tenant, "tenant")
    to_tenant = partial(Crossing, source=APP, target=one.account)
    from_tenant = partial(Crossing, source=one.account, target=APP)
    yield to_tenant(subject=subjects.all_of("api", t), many_replies=True)
    relayed = [
        (subjects.relayed_start(TENANT_ACCOUNT, t, ANY), subjects.tool_started(t, ANY)),
        (subjects.relayed_result(TENANT_ACCOUNT, t, ANY), subjects.tool_result(t, ANY)),
    ]
    for server in one.tool_servers:
        lease = kv_subject(names.RUNNERS, f"{server}.{t}.{ANY}")
        relayed.append((subjects.tenant_lease(t, server, ANY), lease))
    for subject, published_on in relayed:
        yield to_tenant(subject=subject, to=published_on, threshold=_RELAY_THRESHOLD)
    for kind, actions in (("tool", TOOL_REGISTRY), ("workflow", WORKFLOW_REGISTRY)):
        for action in actions:
            registered = subjects.tenant_registry(kind, action, t)
            yield to_tenant(subject=registered, to=subjects.registry(kind, action))
    for subject in (
        subjects.live(t, ANY),
        subjects.delta(t, ANY),
        subjects.approval_request(t, ANY),
        subjects.api(t, "error"),
        subjects.stored_acks(TENANT_ACCOUNT, t),
    ):
        yield to_tenant(subject=subject, kind="stream")
    for server in one.tool_servers:
        yield from_tenant(subject=subjects.tool_call(server, t, ANY), threshold=_CALL_THRESHOLD)
        yield from_tenant(subject=subjects.tool_cancel(server, t, ANY))
        yield from_tenant(subject=subjects.workflow_turn(server, t, ANY))
        yield from_tenant(subject=subjects.workflow_cancel(server, t, ANY))
    yield from_tenant(subject=subjects.tool_progress(t, ANY), kind="stream")


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
        create_file(file, _nkeys.encode_seed(secrets.token_bytes(32), _nkeys.PREFIX_BYTE_USER))
    pair = _nkeys.from_seed(bytearray(file.read_bytes().strip()))
    return str(pair.public_key, "ascii")
