"""`banksman config`: show and check the settings of all services."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, SecretStr
from pydantic_settings import (
    EnvSettingsSource,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SecretsSettingsSource,
    TomlConfigSettingsSource,
)

from banksman.cli import output
from banksman.cli.operator.streams import OperatorSettings
from banksman.cli.output import Exit
from banksman.cli.services import SERVICES, settings_of
from banksman.cli.settings import VENDOR_VARIABLES, UpSettings, adopt_vendor_names
from banksman.contracts.errors import BanksmanError
from banksman.runtime.logs import HIDDEN, SECRET_NAMES, SECRET_VALUES
from banksman.runtime.settings import PREFIX, SECTIONS, ServiceSettings, config_file, file_source, load

_CLI_SETTINGS: tuple[type[ServiceSettings], ...] = (UpSettings, OperatorSettings)


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    value: Any
    """JSON value; secrets are masked."""
    source: str


def show(*, as_json: bool) -> Exit:
    adopt_vendor_names(os.environ)
    for setting in all_settings():
        line = f"{setting.name} = {setting.value!r}  ({setting.source})"
        output.print_result(asdict(setting), line, as_json=as_json)
    return Exit.OK


def validate(*, as_json: bool) -> Exit:
    """Check the settings of all services, and print one sentence per invalid setting."""
    adopt_vendor_names(os.environ)
    problems = list(_problems())
    for problem in problems:
        output.print_json({"problem": problem}) if as_json else output.print_error(problem)
    if not problems and not as_json:
        output.print_line("all settings are valid")
    return Exit.CRITICAL if problems else Exit.OK


def all_settings() -> list[Setting]:
    """Return all settings sorted by name; a setting of several services occurs once."""
    found: dict[str, Setting] = {}
    for found_class in _classes():
        for setting in _of(found_class):
            found.setdefault(setting.name, setting)
    return sorted(found.values(), key=lambda setting: setting.name)


def _problems() -> Iterator[str]:
    seen: set[str] = set()
    try:
        unknown = sorted(_unknown_sections())
    except BanksmanError as error:
        yield str(error)
        return
    yield from unknown
    for settings_class in _classes():
        try:
            load(settings_class)
        except BanksmanError as error:
            if str(error) not in seen:
                seen.add(str(error))
                yield str(error)


def _unknown_sections() -> Iterator[str]:
    """Yield a sentence for each section of the settings file that no service reads."""
    file = config_file()
    if file is None:
        return
    for section in file_source(ServiceSettings, file)():
        if section not in SECTIONS:
            yield f"{file}: {section} is not a known section ({', '.join(sorted(SECTIONS))})"


def _classes() -> Iterator[type[ServiceSettings]]:
    for service in SERVICES:
        try:
            found = settings_of(service)
        except ModuleNotFoundError as error:
            # The image of one service lacks the libraries of the others.
            output.print_error(f"{service}: skipped, {error.name} is not installed here")
            continue
        yield found
    yield from _CLI_SETTINGS


def _of(settings_class: type[ServiceSettings]) -> Iterator[Setting]:
    settings = load(settings_class)
    sources = [(source, source()) for source in _sources(settings_class)]
    for path, value in _leaves(settings):
        yield Setting(".".join(path), _shown(path[-1], value), _source(path, sources))


def _sources(settings_class: type[ServiceSettings]) -> tuple[PydanticBaseSettingsSource, ...]:
    nothing = InitSettingsSource(settings_class, init_kwargs={})
    environment = EnvSettingsSource(settings_class)
    return settings_class.settings_customise_sources(settings_class, nothing, environment, nothing, nothing)


def _leaves(model: BaseModel, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name in type(model).model_fields:
        value = getattr(model, name)
        if isinstance(value, BaseModel):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _source(path: tuple[str, ...], sources: list[tuple[PydanticBaseSettingsSource, dict[str, Any]]]) -> str:
    for source, values in sources:
        if _contains(values, path):
            return _name(source, path)
    return "default"


def _contains(values: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    node: Any = values
    for name in path:
        if not isinstance(node, Mapping) or name not in node:
            return False
        node = cast(Mapping[str, Any], node)[name]
    return True


def _name(source: PydanticBaseSettingsSource, path: tuple[str, ...]) -> str:
    variable = PREFIX + "__".join(path).upper()
    match source:
        case SecretsSettingsSource():
            return f"secret {variable}"
        case EnvSettingsSource():
            return f"environment {_vendor_name(variable)}"
        case TomlConfigSettingsSource():
            return str(config_file())
        case _:
            return type(source).__name__


def _vendor_name(variable: str) -> str:
    """Return the vendor's variable if the value was set by it, otherwise the variable itself."""
    for theirs, ours in VENDOR_VARIABLES.items():
        if ours == variable and os.environ.get(theirs) == os.environ.get(ours):
            return theirs
    return variable


def _shown(name: str, value: Any) -> Any:
    match value:
        case None | bool() | int() | float():
            return value
        case SecretStr():
            return HIDDEN
        case Path():
            return str(value)
        case BaseModel():
            return {field: _shown(field, getattr(value, field)) for field in type(value).model_fields}
        case list() | tuple() | frozenset():
            return [_shown(name, item) for item in cast(tuple[Any, ...], value)]
        case dict():
            return {str(key): _shown(str(key), item) for key, item in cast(Mapping[Any, Any], value).items()}
        case _:
            secret = SECRET_NAMES.search(name) and not name.endswith("_file")
            return HIDDEN if secret else SECRET_VALUES.sub(HIDDEN, str(value))
