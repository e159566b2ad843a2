"""An operator exports a tenant and deletes it, and nothing of it is left."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from banksman import sdk
from banksman.bus.connection import Bus
from banksman.bus.dead import dead_letters
from banksman.bus.names import MCP_ACCOUNTS
from banksman.bus.storage.kv import Bucket
from banksman.cli.operator.tenant_removal import TENANT_KEYS
from banksman.cli.operator.tenants import NOT_EXPORTED
from banksman.contracts import subjects
from banksman.contracts.assistants import ApprovalRule, NewAssistant, ToolSettings
from banksman.contracts.mcp import McpAccount, SignedIn, account_key
from banksman.tool_runner.machine import workspaces_root
from tests.scenarios.conftest import Play, nats_url, operator_seed
from tests.support.polling import eventually
from tests.support.scripted_models import ScriptedCall, ScriptedReply
from tests.support.system import System
from tests.support.timeouts import WAIT_TIMEOUT_S

TENANT = "leaving"
MARK = "file-of-the-tenant-that-leaves.txt"
SECRET = "secret-of-the-tenant-that-leaves"
BUCKETS = ("conversations", "assistants", "owners", "tenant-secrets")
LARGE = ScriptedCall(name="bash", arguments={"command": f"seq 9000; touch {MARK}"})


async def banksman(system: System, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Run an operator command; return its exit code and the JSON that it prints."""
    command = (sys.executable, "-m", "banksman.cli", *arguments, "--data-dir", str(system.data_dir), "--json")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(3 * WAIT_TIMEOUT_S):
        printed, _ = await process.communicate()
    return process.returncode or 0, [json.loads(line) for line in printed.splitlines()]


async def filled(client: sdk.Client, operator: Bus, model: str) -> None:
    """Give the tenant a run with a workspace and a large output, one that waits, and a dead letter."""
    await client.create_assistant(
        NewAssistant(
            id="auto",
            tools=ToolSettings(enabled=True),
            approval_policy=(ApprovalRule(tool="*", action="auto"),),
        )
    )
    secret = json.dumps({"value": SECRET}).encode()
    await operator.request(subjects.api(TENANT, "secret", "set", "API_TOKEN"), secret, WAIT_TIMEOUT_S)
    text = json.dumps({"text": "Reply briefly."}).encode()
    await operator.request(subjects.api(TENANT, "instructions", "set"), text, WAIT_TIMEOUT_S)
    access = SignedIn(user="ada", at=datetime.now(UTC), sealed=SECRET)
    account = McpAccount(server="docs", user="ada", place="docs", signed_in=access)
    await Bucket(operator, MCP_ACCOUNTS, McpAccount).put(account_key(TENANT, "docs", "ada"), account)
    finished = await client.create_conversation(model=model, assistant="auto")
    outcome = await client.outcome(await client.send(finished, "list"))
    assert outcome.status == "completed"
    waiting = await client.create_conversation(model=model)
    await client.send(waiting, "list")
    async for event in client.follow(waiting):
        if event.type == "approval.requested":
            break
    await operator.publish(subjects.api(TENANT, "run", "cancel", waiting), b"[]")

    async def is_dead_lettered() -> bool:
        return any([TENANT in one.letter.subject.split(".") async for one in dead_letters(operator)])

    await eventually(is_dead_lettered, WAIT_TIMEOUT_S)


def check_export(directory: Path, counts: dict[str, int]) -> None:
    """Check that the export has the tenant's assistant, conversations, events, files and whole outputs."""
    assert (counts["conversations"], counts["outputs"]) == (2, 1)
    assert "auto" in [one["id"] for one in json.loads((directory / "assistants.json").read_text())]
    (secret,) = json.loads((directory / "tenant-secrets.json").read_text())
    assert secret["name"] == "API_TOKEN" and "sealed" not in secret
    (instructions,) = json.loads((directory / "instructions.json").read_text())
    assert instructions["text"] == "Reply briefly."
    assert not any(SECRET in file.read_text() for file in directory.glob("*.json"))
    assert {file.stem for file in directory.glob("*.json")} >= {*TENANT_KEYS} - NOT_EXPORTED
    trail = json.loads((directory / "audit.json").read_text())
    assert {"assistant.created", "secret.set"} <= {entry["action"] for entry in trail}
    assert {entry["tenant"] for entry in trail} == {TENANT} and SECRET not in json.dumps(trail)
    (whole,) = directory.glob("conversations/*/outputs/*.txt")
    assert whole.read_text().startswith("1\n2\n") and "\n9000" in whole.read_text()
    place = whole.parents[1]
    assert (place / "files" / MARK).exists()
    frames = [json.loads(line) for line in (place / "events.jsonl").read_text().splitlines()]
    assert [frame["seq"] for frame in frames] == list(range(1, len(frames) + 1))
    assert frames[-1]["type"] == "run.finished" and frames[-1]["data"]["content"] == "listed"


async def test_a_deleted_tenant_leaves_nothing_and_other_tenants_keep_everything(
    system: System, play: Play, operator: Bus, tmp_path: Path
) -> None:
    """Every stream, bucket, object and workspace of the tenant; `left` is counted by the broker."""
    workspaces = workspaces_root(system.data_dir)
    model = play(
        ScriptedReply(tool_calls=(LARGE,)), ScriptedReply(text="listed"), ScriptedReply(tool_calls=(LARGE,))
    )
    async with sdk.connect(nats_url(system), TENANT, nkey_seed_file=operator_seed(system)) as client:
        await filled(client, operator, model)
    assert list(workspaces.rglob(MARK))
    _, before = await banksman(system, "tenants", "ls")
    exported, (written,) = await banksman(system, "tenants", "export", TENANT, str(tmp_path / "export"))
    code, (report,) = await banksman(system, "tenants", "delete", TENANT, "--force")
    _, after = await banksman(system, "tenants", "ls")
    intact, damaged = await banksman(system, "check")

    assert (exported, written["missing"]) == (0, [])
    check_export(tmp_path / "export", written["written"])
    held = {entry["tenant"]: entry["messages"] for entry in before}
    expected = {"EVENTS", "APPROVALS", *(f"KV_{name}" for name in BUCKETS)}
    assert expected <= held[TENANT].keys()
    assert (code, report["left"]) == (0, {})
    assert report["removed"]["conversations"] == 2
    assert report["removed"]["OBJ_outputs"] == 1 and report["removed"]["DEAD"] >= 1
    assert not list(workspaces.rglob(MARK))
    assert {entry["tenant"] for entry in after} == held.keys() - {TENANT}
    assert (intact, damaged) == (0, [])
