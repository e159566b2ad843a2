"""What an operator does with NATS: keys and streams."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from pydantic import Field

from banksman.bus.connection import Bus, NatsSettings
from banksman.cli import output
from banksman.cli.local.state import DataDir, write_signing_key
from banksman.cli.output import Exit
from banksman.contracts.errors import BadInput, NotReady
from banksman.deployment import users
from banksman.deployment.accounts import user_names
from banksman.deployment.keys import generate_keys, key_variable, seed_file
from banksman.deployment.streams import provision, stream_info, verify
from banksman.deployment.topology import StorageBudget, Topology, app_topology, run_topology
from banksman.deployment.users import inbox_prefix
from banksman.runtime.settings import Section, ServiceSettings, load

T = TypeVar("T")

PUBLIC_KEYS = "public.env"
_SHARE_APPROVALS = (users.GATEWAY, users.AGENT)


class OperatorSection(Section):
    """How the operator's commands reach both accounts, and what the streams may take."""

    run_nkey_seed_file: Path | None = None
    """Seed of the operator's user in the runners' account; None leaves that account out."""
    storage_bytes: int = Field(default=20 * 1024**3, gt=0)
    """Bytes that all streams together may take; what the server's `max_file_store` says."""


class OperatorSettings(ServiceSettings):
    """What the operator's commands read."""

    nats: NatsSettings = NatsSettings()
    operator: OperatorSection = OperatorSection()


class Operator:
    """The operator's two users, on the system that runs here or the one that the settings name."""

    def __init__(self, data_dir: Path | None) -> None:
        settings = load(OperatorSettings)
        data = DataDir((data_dir or settings.data_dir).resolve())
        running = data.running()
        here = running is not None and "BANKSMAN_NATS__URL" not in os.environ
        if running is not None and here:
            self._nats = NatsSettings(
                url=running.nats_url,
                monitoring_url=running.monitoring_url,
                nkey_seed_file=seed_file(data.keys, users.OPERATOR),
                connect_timeout_s=5,
            )
            self._run_seed: Path | None = seed_file(data.keys, users.OPERATOR_FILES)
            budget = StorageBudget.of_disk(data.nats)
        else:
            self._nats = settings.nats
            self._run_seed = settings.operator.run_nkey_seed_file
            budget = StorageBudget(settings.operator.storage_bytes)
        self._app = app_topology(budget, replicas=self._nats.replicas)
        self._run = run_topology(budget, replicas=self._nats.replicas)

    @property
    def monitoring_url(self) -> str | None:
        """Where the server tells of itself; None when nobody said."""
        return self._nats.monitoring_url

    async def in_app(self, act: Callable[[Bus], Awaitable[T]], *, needs: tuple[str, ...] = ()) -> T:
        """Do something in the account of the services.

        Args:
            act: What is done.
            needs: Streams without which it cannot be.

        Raises:
            NotReady: one of them is missing.
        """
        async with await self._connect(users.OPERATOR, self._nats) as bus:
            for stream in needs:
                if await stream_info(bus, stream) is None:
                    raise NotReady(
                        f"stream {stream} is missing: `banksman streams provision` makes it, "
                        "`banksman restore` brings it back with what it held"
                    )
            return await act(bus)

    async def in_each(self, act: Callable[[Bus, Topology], Awaitable[tuple[str, ...]]]) -> list[str]:
        """Do something in both accounts; what was said, once each."""
        said = list(await self.in_app(lambda bus: act(bus, self._app)))
        if self._run_seed is not None:
            settings = self._nats.model_copy(update={"nkey_seed_file": self._run_seed, "nkey_seed": None})
            async with await self._connect(users.OPERATOR_FILES, settings) as bus:
                said += await act(bus, self._run)
        return list(dict.fromkeys(said))

    async def _connect(self, user: str, settings: NatsSettings) -> Bus:
        return await Bus.connect(settings, name=f"banksman-{user}", inbox_prefix=inbox_prefix(user))


def provision_streams(data_dir: Path | None, *, as_json: bool) -> Exit:
    """Bring every stream to what the services expect."""
    done = asyncio.run(Operator(data_dir).in_each(provision))
    _print("done", done, as_json=as_json, nothing="nothing to do")
    return Exit.OK


def check_streams(data_dir: Path | None, *, as_json: bool) -> Exit:
    """Say what is weaker than promised."""
    findings = asyncio.run(Operator(data_dir).in_each(verify))
    _print("finding", findings, as_json=as_json, nothing="streams are as promised")
    return Exit.CRITICAL if findings else Exit.OK


def make_keys(directory: Path, *, as_json: bool) -> Exit:
    """Make what is missing of the keys of a deployment, one folder a service.

    `{service}/{user}.nk` for each NATS user, `approvals.key` for gateway and agent, and `nats/public.env` for
    the server, which gets public keys only.
    """
    public: dict[str, str] = {}
    for user in user_names():
        public |= generate_keys(directory / _service_of(user), [user])
    _share_signing_key(directory)
    server = directory / "nats"
    server.mkdir(mode=0o700, exist_ok=True)
    lines = [f"{key_variable(user)}={key}\n" for user, key in public.items()]
    (server / PUBLIC_KEYS).write_text("".join(lines), encoding="ascii")
    output.emit(public) if as_json else output.say(f"keys of {len(public)} users in {directory}")
    return Exit.OK


def serve_nats(config: Path, public_keys: Path) -> None:
    """Become nats-server, with the public keys in its environment.

    Raises:
        BadInput: the file of keys is missing.
        Unavailable: nats-server is not installed.
    """
    from banksman.cli.local.nats import SERVER_ENVIRONMENT, executable

    if not public_keys.is_file():
        raise BadInput("--public-keys", str(public_keys), "the file that `banksman keys` wrote")
    keys = dict(line.split("=", 1) for line in public_keys.read_text(encoding="ascii").splitlines() if line)
    program = executable()
    os.execve(program, [program, "--config", str(config)], {**SERVER_ENVIRONMENT, **os.environ, **keys})


def _service_of(user: str) -> str:
    """Whose folder holds a user's seed."""
    return users.OPERATOR if user == users.SYSTEM else user.removesuffix("-files")


def _share_signing_key(directory: Path) -> None:
    """The same key for all who sign approvals or check them."""
    first, *others = (directory / user / "approvals.key" for user in _SHARE_APPROVALS)
    key = write_signing_key(first)
    for file in others:
        write_signing_key(file, key)


def _print(name: str, lines: list[str], *, as_json: bool, nothing: str) -> None:
    for line in lines:
        output.emit({name: line}) if as_json else output.say(line)
    if not lines and not as_json:
        output.say(nothing)
