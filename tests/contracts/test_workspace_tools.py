"""The definitions of the workspace tools state the limits that runners apply."""

from __future__ import annotations

from banksman.contracts.wire import JsonObject
from banksman.contracts.workspace_tools import (
    BASH,
    COMMAND_TIMEOUT_S,
    FETCH_TIMEOUT_S,
    MAX_MATCHES,
    MAX_OUTPUT_CHARS,
    READ_FILE,
    SEARCH_CODE,
    WEB_FETCH,
)


def property_of(schema: JsonObject, name: str) -> dict[str, object]:
    properties = schema["properties"]
    assert isinstance(properties, dict)
    found = properties[name]
    assert isinstance(found, dict)
    return dict(found)


def test_descriptions_state_the_maximum_output() -> None:
    for tool in (BASH, READ_FILE, WEB_FETCH):
        assert f"{MAX_OUTPUT_CHARS} characters" in tool.description


def test_the_schema_of_bash_states_its_timeouts() -> None:
    timeout = property_of(BASH.input_schema, "timeout_s")
    assert timeout["maximum"] == BASH.timeout_s
    assert f"Default {COMMAND_TIMEOUT_S:g}, at most {BASH.timeout_s:g}." in str(timeout["description"])


def test_a_fetch_has_the_time_of_its_tool() -> None:
    assert WEB_FETCH.timeout_s == FETCH_TIMEOUT_S


def test_the_schema_of_a_search_states_the_most_matches() -> None:
    assert property_of(SEARCH_CODE.input_schema, "max_results")["maximum"] == MAX_MATCHES
