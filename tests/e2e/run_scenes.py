"""Runs, as the gateway shows their steps."""

from __future__ import annotations

from typing import Any

from tests.e2e.stage import CONVERSATION, RUN, Stage

OTHER_RUN = f"{CONVERSATION}-r2"
_MINUTE = "2026-01-02T10:00"


def _step(
    id: str, kind: str, name: str, status: str, began: float, ended: float, **more: Any
) -> dict[str, Any]:
    return {
        "step_id": id,
        "kind": kind,
        "iteration": 1,
        "name": name,
        "status": status,
        "summary": "",
        "began_at": f"{_MINUTE}:{began:06.3f}Z",
        "ended_at": f"{_MINUTE}:{ended:06.3f}Z",
        "duration_ms": round((ended - began) * 1000),
        "usage": None,
        "by": "",
        **more,
    }


def _usage(tokens_in: int, tokens_out: int, cost: float) -> dict[str, Any]:
    return {"input_tokens": tokens_in, "output_tokens": tokens_out, "cached_tokens": 0, "cost_usd": cost}


STEPS = [
    _step("m1", "model", "openai:gpt-5", "tool_calls", 0, 2.1, usage=_usage(1_850, 62, 0.0031)),
    _step("k1", "tool", "bash", "done", 2.1, 9.4, summary="grep -rn load src | head -200", duration_ms=840),
    _step("p1", "approval", "bash", "approved", 2.1, 8.5, by="ada"),
    _step("k2", "tool", "read_file", "tool_error", 2.1, 2.3, summary="load.py", duration_ms=12),
    _step(
        "m2",
        "model",
        "openai:gpt-5",
        "stop",
        9.4,
        14.8,
        summary="The load is 40 t.",
        usage=_usage(41_300, 340, 0.0584),
    ),
]

MESSAGES = [
    {"role": "user", "message_id": "m0", "content": "Hello."},
    {"role": "assistant", "message_id": "a0", "content": "What should I do?"},
    {"role": "user", "message_id": "u1", "content": "How large is the load?"},
]


def runs(stage: Stage) -> None:
    """A run with five steps, and a second one with another model."""
    first = _run(RUN, "openai:gpt-5")
    second = _run(OTHER_RUN, "anthropic:claude-sonnet-5")
    cheaper = [{**step, "usage": step["usage"] and _usage(1_900, 80, 0.002)} for step in STEPS]
    request = {
        "model": "openai:gpt-5",
        "protocol": "native",
        "options": {},
        "system": "You are a helpful agent.\n\n## Tools\n…",
        "tools": [{"name": "bash", "description": "Run a command."}],
        "messages": MESSAGES,
    }
    stage.resources |= {
        f"context/runs/{RUN}": first,
        f"context/runs/{OTHER_RUN}": second,
        f"context/conversations/{CONVERSATION}/runs": {"items": [first, second]},
        f"context/runs/{RUN}/steps": {"items": STEPS, "next": None, "total": len(STEPS)},
        f"context/runs/{OTHER_RUN}/steps": {"items": cheaper, "next": None, "total": len(STEPS)},
        f"context/runs/{RUN}/steps/m1": {
            "step": STEPS[0],
            "request": request,
            "result": {"content": "I look."},
        },
        f"context/runs/{RUN}/steps/k1": {
            "step": STEPS[1],
            "request": {"name": "bash", "arguments": {"command": "grep -rn load src | head -200"}},
            "result": {"result": {"content": {"success": True, "stdout": "load.py: 40 t"}}},
        },
    }


def _run(run_id: str, model: str) -> dict[str, Any]:
    return {
        "run_id": run_id,
        "conversation_id": CONVERSATION,
        "message_id": "u1",
        "status": "completed",
        "model": model,
        "iterations": 2,
        "asked_at": f"{_MINUTE}:00Z",
        "started_at": f"{_MINUTE}:00Z",
        "finished_at": f"{_MINUTE}:14.800Z",
        "pending_approvals": [],
        "content": "The load is **40 t**.",
    }
