"""A certified OpenID Connect provider, the npm package `oidc-provider`, in a process of its own for tests."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any

from tests.support.node import installed

NODE = Path(__file__).parent / "node"
CLIENT = {"client_id": "banksman page", "client_secret": "100% secret + more: &"}
"""With characters that RFC 6749 (2.3.1) requires to be encoded in basic authentication."""


@dataclass(frozen=True)
class CertifiedProvider:
    """A running provider."""

    issuer: str
    _process: subprocess.Popen[str]

    def execute(self, command: str) -> None:
        """Execute a command of `node/provider.mjs` that prints nothing."""
        assert self._answer(command) == "done"

    def count(self, what: str) -> int:
        """Return the number that another of its commands prints."""
        return int(self._answer(what))

    def _answer(self, command: str) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        return _line(self._process)


@contextmanager
def certified_provider(accounts: dict[str, Any], folder: Path) -> Generator[CertifiedProvider]:
    """Run a provider with some accounts, which are claims by name.

    Its client is the page at the root of any port of the loopback interface.
    """
    program = installed(NODE, folder / "provider") / "provider.mjs"
    client = {**CLIENT, "redirect_uris": ["http://127.0.0.1/"]}
    process = subprocess.Popen(
        ["node", program, json.dumps(accounts), json.dumps(client)],
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        text=True,
    )
    with process:
        try:
            yield CertifiedProvider(_line(process), process)
        finally:
            process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    """Return the next line of output; a test that waits without end is ended by its limit."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, "the provider ended"
    return line
