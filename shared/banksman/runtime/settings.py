"""Settings: from `banksman.toml`, the environment and docker secrets, checked once at start.

    BANKSMAN_GATEWAY__PORT=8080      section `gateway`, field `port`
    banksman.toml: [gateway] port = 8080
    /run/secrets/BANKSMAN_MODELS__ANTHROPIC_API_KEY

The environment wins over secrets, secrets over the file. A service reads its own sections; names that no
service has are refused, so that a typing error does not pass for a default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from banksman.contracts.errors import BadInput
from banksman.contracts.wire import bad_input
from banksman.runtime import failpoints

PREFIX = "BANKSMAN_"
SIGNING_KEY_BYTES = 32
CONFIG_FILE_VARIABLE = "BANKSMAN_CONFIG"
"""Names another file than `banksman.toml` in the current folder."""

SECTIONS = frozenset(
    {
        "agent",
        "allow_weak_durability",
        "approvals",
        "data_dir",
        "gateway",
        "local",
        "log",
        "model_server",
        "models",
        "nats",
        "operator",
        "tenants",
        "tool_runner",
        "workflows",
    }
)
"""Every top-level name that some service has."""

NOT_SETTINGS = frozenset(
    {
        CONFIG_FILE_VARIABLE,
        failpoints.TESTING_VARIABLE,
        failpoints.VARIABLE,
        "BANKSMAN_FUZZ_ROUNDS",
        "BANKSMAN_FUZZ_SEED",
        "BANKSMAN_GATEWAY_URL",
        "BANKSMAN_PORT",
        "BANKSMAN_PYTHON",
        "BANKSMAN_RENEW_GOLDEN",
        "BANKSMAN_TAG",
        "BANKSMAN_TEST_CACHE",
        "BANKSMAN_TEST_PRIVILEGED",
        "BANKSMAN_TEST_SERVERS",
        "BANKSMAN_TOKEN",
    }
)
"""Variables with our prefix that are read elsewhere."""


class Section(BaseModel):
    """A frozen group of settings that refuses unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class LogSettings(Section):
    """What is logged, and how."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"
    """auto writes lines for people on a terminal, and JSON elsewhere."""


class HealthSettings(Section):
    """Where `/healthz`, `/readyz` and `/metrics` are served."""

    health_host: str = "127.0.0.1"
    health_port: int | None = Field(default=None, ge=0, le=65535)
    """None serves none; 0 takes a free port."""


class ApprovalSettings(Section):
    """The key by which gateways sign approvals and agents check them."""

    signing_key: SecretStr | None = None
    """At least 32 characters; the same for all gateways and agents."""
    signing_key_file: Path | None = None
    """A file with the key, when it is not given itself."""

    def key(self) -> bytes:
        """The key.

        Raises:
            BadInput: when neither is set, the file cannot be read, or the key is too short.
        """
        if self.signing_key is not None:
            key = self.signing_key.get_secret_value().encode()
        elif self.signing_key_file is not None and self.signing_key_file.is_file():
            key = self.signing_key_file.read_bytes().strip()
        else:
            raise BadInput(
                "BANKSMAN_APPROVALS__SIGNING_KEY_FILE", self.signing_key_file, "a file with the key"
            )
        if len(key) < SIGNING_KEY_BYTES:
            raise BadInput("BANKSMAN_APPROVALS__SIGNING_KEY", None, f"at least {SIGNING_KEY_BYTES} bytes")
        return key


class ServiceSettings(BaseSettings):
    """The base of each service's settings; a subclass adds its sections."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )

    data_dir: Path = Path(".banksman")
    """State that outlives the process: streams, workspaces, keys."""
    log: LogSettings = LogSettings()
    allow_weak_durability: bool = False
    """True lets a service be ready though streams or the server are set weaker than promised.

    For development."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment before secrets before the file."""
        secrets = Path("/run/secrets")
        sources = [init_settings, env_settings]
        if secrets.is_dir():
            sources.append(SecretsSettingsSource(settings_cls, secrets_dir=secrets))
        file = config_file()
        if file is not None:
            sources.append(TomlConfigSettingsSource(settings_cls, toml_file=file))
        return tuple(sources)


S = TypeVar("S", bound=ServiceSettings)


def load(settings: type[S], **given: Any) -> S:
    """Read and check the settings of one service.

    Raises:
        BadInput: naming the variable, and what was expected. The value may be a secret and is not named.
    """
    _refuse_unknown(os.environ)
    try:
        return settings(**given)
    except ValidationError as error:
        first = bad_input(error, "settings")
        variable = PREFIX + first.field.upper().replace(".", "__")
        raise BadInput(variable, None, first.expected) from error


def config_file() -> Path | None:
    """The configuration file; None when there is none.

    Raises:
        BadInput: `BANKSMAN_CONFIG` names a file that does not exist.
    """
    named = os.environ.get(CONFIG_FILE_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise BadInput(CONFIG_FILE_VARIABLE, named, "the path of a file that exists")
        return Path(named)
    usual = Path("banksman.toml")
    return usual if usual.is_file() else None


def _refuse_unknown(environment: Mapping[str, str]) -> None:
    for name in environment:
        if not name.startswith(PREFIX) or name in NOT_SETTINGS:
            continue
        section = name.removeprefix(PREFIX).partition("__")[0].lower()
        if section not in SECTIONS:
            raise BadInput(name, None, f"a known setting; the sections are {', '.join(sorted(SECTIONS))}")
