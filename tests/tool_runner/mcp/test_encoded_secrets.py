"""Results hide the secrets of the program that runs, in the encodings that programs use."""

from __future__ import annotations

import pytest
from tests.tool_runner.conftest import Runner, only
from tests.tool_runner.mcp.test_planted_programs import PROGRAM, ran, servers

from banksman.contracts.mcp import StdioServer
from banksman.runtime.redaction import HIDDEN
from banksman.tool_runner.mcp.servers import McpClient

__all__ = ["servers"]

SECRET = 'to/ken+with "quotes" & ümläuts, and more than 57 bytes, so base64 wraps it'
PASSWORD = "p%40ssword-of-a-database"
SERVER = StdioServer(
    command=PROGRAM.command,
    env={"TOKEN": SECRET, "DATABASE_URL": f"postgres://user:{PASSWORD}@db/name"},
)

pytestmark = only("bwrap", "containers of the backend docker have no channel")


@pytest.mark.parametrize(
    "code",
    [
        "t",
        "json.dumps(t)",
        "json.dumps(json.dumps(t))",
        "json.dumps(t).replace('/', '\\\\/')",
        "urllib.parse.quote(t)",
        "urllib.parse.quote(t, safe='').lower()",
        "''.join(f'%{b:02x}' for b in t.encode())",
        "''.join(f'\\\\x{b:02x}' for b in t.encode())",
        "''.join(f'\\\\u{ord(c):04x}' for c in t)",
        "''.join(f'&#{ord(c)};' for c in t)",
        "html.escape(t)",
        "t.encode().hex()",
        "t.encode().hex(' ')",
        "t.encode().hex(':').upper()",
        "base64.b64encode(t.encode()).decode()",
        "base64.urlsafe_b64encode(('user:' + t + '!').encode()).decode()",
        "base64.b64encode(t.encode('utf-16-le')).decode()",
        "base64.b32encode(t.encode()).decode()",
        "base64.encodebytes(t.encode()).decode()",
        "base64.encodebytes(('user:' + t + '!').encode()).decode()",
        "t[::-1]",
        "os.environ['DATABASE_URL']",
        "os.environ['DATABASE_URL'].split(':')[2].split('@')[0]",
        "urllib.parse.unquote(os.environ['DATABASE_URL'].split(':')[2].split('@')[0])",
    ],
)
async def test_an_encoded_secret_is_hidden(servers: McpClient, runner: Runner, code: str) -> None:
    program = f"import base64, html, json, os, urllib.parse\nt = os.environ['TOKEN']\nprint('<', {code}, '>')"
    (runner.workspace.directory / "encode.py").write_text(program)
    outcome = await ran(servers, runner, "python3 /workspace/encode.py", SERVER)
    text = str(outcome.value["result"])
    assert HIDDEN in text
    assert len(text) < len(HIDDEN) + 20, text
