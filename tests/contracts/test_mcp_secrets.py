"""Which parts of a configured value are secrets."""

from __future__ import annotations

import pytest

from banksman.contracts.mcp import HttpServer
from banksman.runtime.redaction import HIDDEN, Redaction


@pytest.mark.parametrize(
    ("header", "repeated"),
    [
        ("Bearer a-bearer-token", "a-bearer-token"),
        ("Basic dXNlcjphLXBhc3N3b3Jk", "a-password"),
        ("Basic dXNlcjphLXBhc3N3b3Jk", "user:a-password"),
    ],
)
def test_parts_of_a_header_are_secrets(header: str, repeated: str) -> None:
    server = HttpServer(url="https://mcp.example.org", headers={"Authorization": header})
    assert Redaction(server.secrets).of(f"bad {repeated}") == f"bad {HIDDEN}"
