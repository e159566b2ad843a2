"""Records the store of the current version: a system with one of each stored thing, and work that waits."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from tests.contracts.messages.samples import samples, written
from tests.golden_stores.stores import KEYS, Store, banksman
from tests.support.polling import wait_until
from tests.support.system import System

WAIT_S = 60.0
SETTINGS = {
    # A hundred years: the store is read for as long as there are versions.
    "BANKSMAN_AGENT__APPROVAL_EXPIRY_S": str(100 * 365 * 86_400),
    "BANKSMAN_TOOL_RUNNER__SNAPSHOTS__IDLE_S": "0.5",
    "BANKSMAN_GATEWAY__WEBHOOK_ADDRESSES": '["127.0.0.1:9"]',
}
NEWS = {"path": "N.md", "content": "{{steps.news}}"}
STEPS = [
    {"type": "input", "name": "news", "message": "What is new?"},
    {"type": "tool", "name": "write", "tool": "write_file", "arguments": NEWS},
]
FILES = [{"path": "a.txt", "content": "A"}]
SCHEDULED = {"start": {"type": "prompt", "content": "hi"}, "cron": "0 0 1 1 *"}
SERVER = {"id": "files", "transport": {"type": "stdio", "command": ["serve"]}}
WEBHOOK = {"url": "http://127.0.0.1:9/hook", "events": ["input.requested"]}
RESOURCES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("POST", "/context/assistants", {"id": "golden", "system_prompt": "Be brief.", "files": FILES}),
    ("PUT", "/context/assistants/golden", {"system_prompt": "Be very brief."}),
    ("POST", "/v1/system-prompts", {"id": "golden", "content": "You are {{service}}."}),
    ("POST", "/workflows", {"name": "golden", "title": "Golden", "built": {"steps": STEPS}}),
    ("POST", "/context/schedules", SCHEDULED),
    ("POST", "/context/webhooks", WEBHOOK),
    ("PUT", "/context/secrets/GOLDEN", {"value": "a secret of the golden store"}),
    ("PUT", "/context/policy", {"rules": [{"tool": "read_file", "action": "auto"}]}),
    ("POST", "/context/mcp-servers", SERVER),
)
READ = (
    "/context/assistants/golden",
    "/context/assistants/golden/revisions",
    "/v1/system-prompts/golden",
    "/workflows/golden",
    "/context/schedules",
    "/context/webhooks",
    "/context/secrets",
    "/context/policy",
    "/context/mcp-servers",
    "/context/keys",
    "/context/conversations",
    "/context/approvals",
    "/context/inputs",
)
"""What the gateway returns of stored data that does not expire."""


def record(store: Store) -> None:
    """Write the folder of a version."""
    shutil.rmtree(store.messages, ignore_errors=True)
    store.messages.mkdir(parents=True)
    for name, sample in samples():
        (store.messages / f"{name}.json").write_text(written(sample), encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="banksman-") as place:
        Path(place).chmod(0o711)
        system = System(Path(place) / "data", None, SETTINGS)
        try:
            system.start()
            expected = Recorder(system).fill()
            banksman(system, "backup", f"{place}/backup", "--data-dir", str(system.data_dir))
        finally:
            system.kill_everything()
        _pack(store.system, system, Path(place) / "backup", expected)


def _pack(to: Path, system: System, backup: Path, expected: dict[str, Any]) -> None:
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir(parents=True)
    with tarfile.open(to / "backup.tar.gz", "w:gz") as packed:
        packed.add(backup, "backup")
    for name in KEYS:
        shutil.copy(system.data_dir / "keys" / name, to / name)
        (to / name).chmod(0o644)
    (to / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n", encoding="utf-8")


class Recorder:
    """Fills a running system over HTTP."""

    def __init__(self, system: System) -> None:
        self._system = system
        self._http = httpx.Client(base_url=system.url, timeout=WAIT_S)

    def fill(self) -> dict[str, Any]:
        """Store one of each thing and leave work behind; return what the gateway returned of it."""
        for method, path, body in RESOURCES:
            self._request(method, path, body)
        token = self._keys()
        finished = self._run("run `echo golden > kept.txt`")
        self._decide(finished, remember="conversation")
        self._ended(finished)
        parked, decided = self._run("run `echo parked`"), self._run("run `echo decided`")
        self._request("POST", f"/context/approvals/{self._approval(parked)}/aside", None)
        wanted = self._request("POST", "/workflows/golden/runs", {"parameters": {}})
        self._find("/context/inputs", wanted)
        approval = self._approval(decided)
        # The snapshot of the workspace is stored half a second after its last call.
        time.sleep(5)
        returned = {path: self._request("GET", path, None) for path in READ}
        events = self._request("GET", f"/context/conversations/{finished['conversation_id']}/events", None)
        for pid in self._system.service_pids("agent"):
            os.kill(pid, signal.SIGSTOP)
        self._request("POST", f"/context/approvals/{approval}", {"all": "approve"})
        runs = {"finished": finished, "parked": parked, "decided": decided, "wanted": wanted}
        runs["queued"] = self._run("hello")
        ids = {name: {key: run[key] for key in ("conversation_id", "run_id")} for name, run in runs.items()}
        return {"token": token, "runs": ids, "returned": returned, "events": events}

    def _keys(self) -> str:
        """Create the first key, in the gateway's file, and another one in NATS; return the first."""
        body = {"user": "ann", "rights": ["chat", "approve", "admin"]}
        first = self._request("POST", "/context/keys", body)
        self._http.headers["authorization"] = f"Bearer {first['key']}"
        self._request("POST", "/context/keys", {"user": "ben", "rights": ["chat"]})
        return first["key"]

    def _run(self, content: str) -> dict[str, Any]:
        conversation = self._request("POST", "/context/conversations", {"title": content})["conversation_id"]
        return self._request("POST", f"/context/conversations/{conversation}/runs", {"content": content})

    def _approval(self, run: dict[str, Any]) -> str:
        return self._find("/context/approvals", run)["approval_id"]

    def _decide(self, run: dict[str, Any], **fields: str) -> None:
        self._request("POST", f"/context/approvals/{self._approval(run)}", {"all": "approve", **fields})

    def _ended(self, run: dict[str, Any]) -> None:
        ended = self._http.get(f"/context/runs/{run['run_id']}", params={"wait_s": 30}).json()
        if ended["status"] != "completed":
            raise RuntimeError(f"a run ended as {ended['status']}")

    def _find(self, path: str, run: dict[str, Any]) -> dict[str, Any]:
        """Wait until a list has an entry of a run; return it."""

        def find() -> dict[str, Any] | None:
            items = self._request("GET", path, None)["items"]
            return next((one for one in items if one["run_id"] == run["run_id"]), None)

        return wait_until(find, WAIT_S)

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        response = self._http.request(method, path, json=body)
        if response.is_error:
            raise RuntimeError(f"{method} {path}: {response.status_code} {response.text}")
        return response.json() if response.content else None
