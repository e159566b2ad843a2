"""Programs that use the gateway's APIs: the installation and configuration of each.

The prompts are sentences that the demo model understands, so that a program with tools calls one of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

HELLO = "hello"
PROOF = "proof.txt"
"""The file that a program's tool writes."""
WRITE = f"echo proof > {PROOF}"
SCRIPTS = Path(__file__).parent / "client_scripts"
_ESCAPED = WRITE.replace(" ", "\\u0020")


def use(tool: str, **arguments: object) -> str:
    """Return a prompt that requests a tool call."""
    return f"use the tool `{tool}` with {json.dumps(arguments)}"


@dataclass(frozen=True)
class Program:
    """One program. `{url}` in its files and environment stands for the gateway's address."""

    name: str
    registry: Literal["npm", "pypi"]
    package: str
    version: str
    command: tuple[str, ...]
    """The executable, of the package or of the machine, and its arguments."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Configuration below the home directory, which is the working directory."""
    before: tuple[str, ...] = ()
    """Arguments of a command that configures the program before its first conversation."""
    effect: Literal["file", "run", "none"] = "file"
    """The effect of its tool call: the file `PROOF`, or a conversation of the agent; `none` without tools."""

    def adapted(self, text: str, url: str) -> str:
        """Return a text with the gateway's address in place of `{url}`."""
        return text.replace("{url}", url)


def _script(name: str) -> dict[str, str]:
    return {name: (SCRIPTS / name).read_text(encoding="utf-8")}


_SDK_CALL = use("write_file", path=PROOF, content="proof")
_START = use("mcp__banksman__start_run", message=HELLO)
_OPENAI = {"OPENAI_API_KEY": "x", "OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_BASE": "{url}/v1"}
_CODEX = 'model_providers.banksman={name="banksman",base_url="{url}/v1",wire_api="responses",env_key="KEY"}'
_OPENCODE = {
    "autoupdate": False,
    "share": "disabled",
    "provider": {
        "banksman": {
            "npm": "@ai-sdk/openai-compatible",
            "options": {"baseURL": "{url}/v1", "apiKey": "x"},
            "models": {"demo": {"name": "demo"}},
        }
    },
    "small_model": "banksman/demo",
}
_CONTINUE = {
    "name": "banksman",
    "version": "0.0.1",
    "schema": "v1",
    "models": [
        {"name": "demo", "provider": "openai", "model": "demo", "apiBase": "{url}/v1", "apiKey": "x"},
    ],
}
_LLM = [{"model_id": "demo", "model_name": "demo", "api_base": "{url}/v1"}]

_CLAUDE = {
    "ANTHROPIC_BASE_URL": "{url}", "ANTHROPIC_API_KEY": "x", "DISABLE_AUTOUPDATER": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    # The demo model does not search for tools.
    "ENABLE_TOOL_SEARCH": "false",
}  # fmt: skip
_CLAUDE_MCP = json.dumps({"mcpServers": {"banksman": {"type": "http", "url": "{url}/mcp"}}})
_CODEX_EXEC = (
    "codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
    "-c", "model_provider=banksman", "-c", _CODEX, "-m", "demo",
)  # fmt: skip

PROGRAMS = (
    Program(
        "anthropic (Python)", "pypi", "anthropic", "2.12.0",
        ("python", "anthropic_sdk.py", "{url}", _SDK_CALL),
        {"ANTHROPIC_API_KEY": "x"},
        _script("anthropic_sdk.py"),
    ),
    Program(
        "anthropic (JavaScript)", "npm", "@anthropic-ai/sdk", "1.12.0",
        ("node", "anthropic_sdk.mjs", "{url}", _SDK_CALL),
        {"ANTHROPIC_API_KEY": "x"},
        _script("anthropic_sdk.mjs"),
    ),
    Program(
        "Cline", "npm", "cline", "3.0.65",
        ("cline", "-P", "openai-compatible", "-m", "demo", use("run_commands", commands=[WRITE])),
        before=("auth", "openai-compatible", "--apikey", "x", "--modelid", "demo", "--baseurl", "{url}/v1"),
    ),
    Program(
        "Continue", "npm", "@continuedev/cli", "1.5.47",
        ("cn", "--auto", "--config", "continue.yaml", "-p", use("Bash", command=WRITE)),
        {"CONTINUE_TELEMETRY_ENABLED": "0"},
        # JSON is YAML.
        {"continue.yaml": json.dumps(_CONTINUE)},
    ),
    Program(
        "opencode", "npm", "opencode-ai", "1.18.33",
        # The program quotes words with a space.
        ("opencode", "run", "-m", "banksman/demo", "use", "the", "tool", "`bash`", "with",
         f'{{"command":"{_ESCAPED}","description":"x"}}'),
        {"OPENCODE_DISABLE_AUTOUPDATE": "1"},
        {"opencode.json": json.dumps(_OPENCODE)},
    ),
    Program(
        "codex", "npm", "@openai/codex", "0.169.0",
        (*_CODEX_EXEC, use("exec_command", cmd=WRITE)),
        {"KEY": "x"},
    ),
    Program(
        "codex (MCP)", "npm", "@openai/codex", "0.169.0",
        # codex waits one second for a server that is not required, and then begins without its tools:
        # https://github.com/openai/codex/pull/31641
        (*_CODEX_EXEC, "-c", 'mcp_servers.banksman.url="{url}/mcp"',
         "-c", "mcp_servers.banksman.required=true", _START),
        {"KEY": "x"},
        effect="run",
    ),
    Program(
        "Claude Code", "npm", "@anthropic-ai/claude-code", "2.1.330",
        ("claude", "--model", "demo", "-p", use("Bash", command=WRITE, description="x"),
         "--allowedTools", "Bash"),
        _CLAUDE,
    ),
    Program(
        "Claude Code (MCP)", "npm", "@anthropic-ai/claude-code", "2.1.330",
        ("claude", "--model", "demo", "-p", _START, "--mcp-config", _CLAUDE_MCP,
         "--allowedTools", "mcp__banksman__start_run"),
        _CLAUDE,
        effect="run",
    ),
    Program(
        "qwen-code", "npm", "@qwen-code/qwen-code", "0.24.4",
        ("qwen", "--auth-type", "openai", "--yolo", "-p",
         use("run_shell_command", command=WRITE, is_background=False)),
        {**_OPENAI, "OPENAI_MODEL": "demo"},
    ),
    Program(
        "aider", "pypi", "aider-chat", "0.86.2",
        ("aider", "--model", "openai/demo", "--no-git", "--yes-always", "--no-check-update", "--no-pretty",
         "--no-show-model-warnings", "--no-show-release-notes", "--analytics-disable", "--message", HELLO),
        _OPENAI,
        effect="none",
    ),
    Program(
        "llm", "pypi", "llm", "0.36",
        ("llm", "-m", "demo", "--key", "x", HELLO),
        {"LLM_USER_PATH": "."},
        {"extra-openai-models.yaml": json.dumps(_LLM)},
        effect="none",
    ),
)  # fmt: skip
