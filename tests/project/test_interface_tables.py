"""The map from each line of the interfaces' tables to its test.

`test_published_names` finds a published name without any mention. The map is in `interface_lines` and
`behaviour_lines`.
"""

from __future__ import annotations

import re
from functools import cache

import pytest

from banksman.gateway.composition import FEATURES, operations_of, routes_of
from banksman.gateway.front import application
from banksman.gateway.interfaces.http.routes import websocket_schema
from banksman.gateway.operation.dispatch import Dispatcher
from banksman.gateway.operation.parameters import ServiceMap
from banksman.runtime.health import Health
from tests.project.behaviour_lines import OTHERS
from tests.project.interface_lines import ENDPOINTS, FRAMES, NOT_IN_THE_TABLES
from tests.support.paths import ROOT


@pytest.mark.parametrize("lines", [ENDPOINTS, FRAMES, OTHERS], ids=["endpoints", "frames", "others"])
def test_each_line_names_a_test_that_exists(lines: dict[str, str]) -> None:
    assert [name for name in lines.values() if not _exists(name)] == []


def test_each_endpoint_is_described() -> None:
    app = application(Health("test"), Dispatcher(operations_of(FEATURES), ServiceMap()), routes_of(FEATURES))
    described = {
        f"{method.upper()} {path}" for path, methods in app.openapi()["paths"].items() for method in methods
    }
    assert set(ENDPOINTS) - described == set()


def test_each_frame_is_described_and_has_a_line() -> None:
    document = websocket_schema()
    clients = {*document["client"]["discriminator"]["mapping"]}
    events = {frame["title"] for frame in document["events"]["oneOf"]}
    assert clients | events <= {*FRAMES, *NOT_IN_THE_TABLES}


def _exists(name: str) -> bool:
    file, _, function = name.partition("::")
    return re.search(rf"^(async )?def {function}\(", _source(file), re.MULTILINE) is not None


@cache
def _source(file: str) -> str:
    path = ROOT / "tests" / file
    return path.read_text(encoding="utf-8") if path.exists() else ""
