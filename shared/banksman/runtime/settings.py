"""Settings from the environment, docker secrets and `banksman.toml`, validated once at start.

    BANKSMAN_GATEWAY__PORT=8080      section `gateway`, field `port`
    banksman.toml: [gateway] port = 8080
    /run/secrets/BANKSMAN_MODELS__ANTHROPIC_API_KEY

The environment overrides secrets, and secrets override the file. A service reads its own sections. Unknown
names are refused, because a misspelled setting would silently keep its default.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from banksman.contracts.errors import BadInput
from banksman.contracts.validation_errors import expected
from banksman.runtime import failpoints, outgoing, redaction
from banksman.runtime.disk import GIB, DiskLimits

PREFIX = "BANKSMAN_"
_SECRET = re.compile(r"KEY|SEED|TOKEN|SECRET|PASSWORD")
"""Matches variables whose values errors must not show. A URL with credentials contains `@`."""
_EXCERPT_CHARS = 120
_FIELD = re.compile(r'field "(\w+)"')
"""Finds the field in an error of pydantic-settings."""
SIGNING_KEY_BYTES = 32
CONFIG_FILE_VARIABLE = "BANKSMAN_CONFIG"
"""Names the configuration file, in place of `banksman.toml` in the working directory."""

SECTIONS = frozenset(
    {
        "agent",
        "allow_weak_durability",
        "approvals",
        "ca_bundle",
        "data_dir",
        "disk",
        "gateway",
        "local",
        "log",
        "model_server",
        "models",
        "nats",
        "operator",
        "search",
        "tenants",
        "tool_runner",
        "workflows",
    }
)
"""The top-level names of all services and commands."""

NOT_SETTINGS = frozenset(
    {
        CONFIG_FILE_VARIABLE,
        failpoints.TESTING_VARIABLE,
        failpoints.VARIABLE,
        "BANKSMAN_FUZZ_ROUNDS",
        "BANKSMAN_FUZZ_SEED",
        "BANKSMAN_GATEWAY_URL",
        "BANKSMAN_PORT",
        "BANKSMAN_PORT_2",
        "BANKSMAN_PYTHON",
        "BANKSMAN_RENEW_GOLDEN",
        "BANKSMAN_TAG",
        "BANKSMAN_TEST_CACHE",
        "BANKSMAN_TEST_PRIVILEGED",
        "BANKSMAN_TEST_SERVERS",
        "BANKSMAN_TOKEN",
    }
)
"""Variables with the prefix of settings that are no settings of a service."""


class Section(BaseModel):
    """A group of settings. It is frozen and refuses unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class LogSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"
    """`auto` writes plain lines on a terminal, and JSON elsewhere."""


class HealthSettings(Section):
    """The address of `/healthz`, `/readyz` and `/metrics`."""

    health_host: str = "127.0.0.1"
    health_port: int | None = Field(default=None, ge=0, le=65535)
    """None disables them; 0 takes a free port."""


class DiskSettings(Section):
    """When a volume, of NATS or of the workspaces, is nearly full or full.

    The smaller one of bytes and percentage counts, so that small volumes need no other settings.
    """

    low_bytes: int = Field(default=2 * GIB, ge=0)
    """Free bytes below which services warn."""
    low_percent: float = Field(default=10.0, ge=0, le=100)
    """Free percentage below which services warn."""
    full_bytes: int = Field(default=256 * 1024**2, ge=0)
    """Free bytes below which services are not ready and refuse new runs. The rest is for open runs."""
    full_percent: float = Field(default=2.0, ge=0, le=100)
    """Free percentage below which services are not ready and refuse new runs."""

    def limits(self) -> DiskLimits:
        return DiskLimits(self.low_bytes, self.low_percent, self.full_bytes, self.full_percent)


class ApprovalSettings(Section):
    """The key with which gateways sign approval replies and agents verify them."""

    signing_key: SecretStr | None = None
    """At least 32 bytes, the same for all gateways and agents."""
    signing_key_file: Path | None = None
    """A file with the key; read if `signing_key` is not set."""

    def key_if_set(self) -> bytes:
        """Return the key; empty if neither setting is set, for a process that only closes requests."""
        return self.key() if self.signing_key or self.signing_key_file else b""

    def key(self) -> bytes:
        """Return the key; raise `BadInput` if none is set, the file does not exist, or the key is short."""
        if self.signing_key is not None:
            key = self.signing_key.get_secret_value().encode()
        elif self.signing_key_file is not None and self.signing_key_file.is_file():
            key = self.signing_key_file.read_bytes().strip()
        else:
            raise BadInput(
                "BANKSMAN_APPROVALS__SIGNING_KEY_FILE",
                self.signing_key_file and str(self.signing_key_file),
                "must be a file that holds the key",
            )
        if len(key) < SIGNING_KEY_BYTES:
            raise BadInput(
                "BANKSMAN_APPROVALS__SIGNING_KEY", None, f"must have at least {SIGNING_KEY_BYTES} bytes"
            )
        redaction.remember([key.decode(errors="replace")])
        return key


class ServiceSettings(BaseSettings):
    """The settings that every service has; a subclass adds its sections."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="ignore", frozen=True, hide_input_in_errors=True
    )

    data_dir: Path = Path(".banksman")
    """Directory of the state that survives a restart: streams, workspaces, keys."""
    ca_bundle: Path | None = None
    """A PEM file with certificate authorities that outgoing connections trust besides the usual ones."""
    log: LogSettings = LogSettings()
    disk: DiskSettings = DiskSettings()
    allow_weak_durability: bool = False
    """True lets a service become ready although streams or the server are weaker than required.

    For development only."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources: the environment first, then secrets, then the file."""
        secrets = Path("/run/secrets")
        sources = [init_settings, env_settings]
        if secrets.is_dir():
            sources.append(SecretsSettingsSource(settings_cls, secrets_dir=secrets))
        file = config_file()
        if file is not None:
            sources.append(file_source(settings_cls, file))
        return tuple(sources)


S = TypeVar("S", bound=ServiceSettings)


class UnknownSetting(BadInput):
    """A name is not a setting."""

    def __init__(self, variable: str, suggestion: str | None, known: str) -> None:
        hint = f"; did you mean {suggestion}?" if suggestion else f". {known}" if known else ""
        super().__init__(variable, None, "is not a setting")
        self.args = (f"Unknown setting {variable}{hint}",)


def load(settings: type[S], **given: Any) -> S:
    """Read and validate the settings of one service.

    Raises:
        UnknownSetting: A variable or an entry of the file is not a setting.
        BadInput: A value is invalid. The error names the variable, the expected value, and the actual value
            unless it may be a secret.
    """
    _refuse_unknown_sections(os.environ)
    try:
        loaded = settings(**given)
    except ValidationError as error:
        raise invalid_setting(settings, error.errors(include_url=False)[0]) from error
    except (SettingsError, RecursionError) as error:
        variable = next(_broken_json(os.environ), variable_of(_FIELD.findall(str(error))))
        raise BadInput(variable, None, f"must be JSON: {error.__cause__ or error}") from error
    redaction.remember_settings(loaded)
    if loaded.ca_bundle is not None:
        outgoing.trust(loaded.ca_bundle)
    return loaded


def invalid_setting(settings: type[ServiceSettings], mistake: ErrorDetails) -> BadInput:
    """Return the first error in the settings of a service, with the name of its environment variable."""
    path = tuple(str(part) for part in mistake["loc"])
    variable = variable_of(path)
    if mistake["type"] == "extra_forbidden":
        variables = list(_variables(settings))
        return UnknownSetting(variable, _closest(variable, variables), _settings_beside(variable, variables))
    value = None if mistake["type"] == "missing" else mistake["input"]
    return BadInput(variable, _shown(variable, value), expected(mistake))


def variable_of(path: Sequence[str]) -> str:
    return PREFIX + "__".join(path).upper()


def _broken_json(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield the variables whose value begins as an object or a list of JSON and is none."""
    for name, value in environment.items():
        if name.startswith(PREFIX) and value.lstrip()[:1] in ("{", "["):
            try:
                json.loads(value)
            except (ValueError, RecursionError):
                yield name


def config_file() -> Path | None:
    """Return the configuration file, or None; raise `BadInput` if `BANKSMAN_CONFIG` names no file."""
    named = os.environ.get(CONFIG_FILE_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise BadInput(CONFIG_FILE_VARIABLE, named, "must be the path of an existing file")
        return Path(named)
    default = Path("banksman.toml")
    return default if default.is_file() else None


def file_source(settings: type[BaseSettings], file: Path) -> TomlConfigSettingsSource:
    """Read a configuration file; raise `BadInput` if it cannot be read or is not TOML."""
    try:
        return TomlConfigSettingsSource(settings, toml_file=file)
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(CONFIG_FILE_VARIABLE, str(file), f"must be a TOML file: {error}") from error


def _refuse_unknown_sections(environment: Mapping[str, str]) -> None:
    for name in environment:
        if not name.startswith(PREFIX) or name in NOT_SETTINGS:
            continue
        section, _, field = name.removeprefix(PREFIX).partition("__")
        if section.lower() not in SECTIONS:
            known = f"The sections are {', '.join(sorted(SECTIONS))}."
            raise UnknownSetting(name, _in_known_section(section.lower(), field), known)


def _in_known_section(section: str, field: str) -> str | None:
    """Return the variable that was probably meant; None if no section is similar."""
    if similar := get_close_matches(section, SECTIONS, n=1):
        return variable_of([*similar, field] if field else similar)
    # One underscore in place of the two that separate the section: BANKSMAN_LOG_LEVEL.
    before = [known for known in SECTIONS if section.startswith(f"{known}_")]
    if before and not field:
        longest = max(before, key=len)
        return variable_of([longest, section.removeprefix(f"{longest}_")])
    return None


def _variables(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the environment variables of all fields of a model and its sections."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _variables(kind, (*path, name))
        else:
            yield variable_of((*path, name))


def _closest(variable: str, known: Iterable[str]) -> str | None:
    """Return the known variable of the same section whose name is most similar; None if none is similar."""
    section, _, name = variable.rpartition("__")
    names = [one.rpartition("__")[2] for one in known if one.rpartition("__")[0] == section]
    similar = get_close_matches(name, names, n=1) or sorted((one for one in names if name in one), key=len)
    return f"{section}__{similar[0]}" if similar else None


def _settings_beside(variable: str, known: Iterable[str]) -> str:
    section = variable.rpartition("__")[0]
    names = sorted(one.removeprefix(f"{section}__") for one in known if one.startswith(f"{section}__"))
    return f"The settings of {section} are {', '.join(names)}." if names else ""


def _shown(variable: str, value: object) -> object:
    """Return a value to show in a message; None if it may be a secret."""
    text = str(value)
    secret = _SECRET.search(variable) or "@" in text or not isinstance(value, str | int | float)
    return None if secret else redaction.redacted(text)[:_EXCERPT_CHARS]
