"""A server with the faults of real ones, which clients report in public; the variable `FAULTS` names them.

It writes JSON by hand, because the SDKs refuse to write most of these messages.
"""

import json
import os
import sys

FAULTS = os.environ.get("FAULTS", "").split()
OBJECT = {"type": "object"}
ECHO = {"name": "echo", "description": "Echo.", "inputSchema": OBJECT | {"properties": {"text": {}}}}
UNUSUAL = [
    {"name": "no-schema", "description": "d"},
    {"name": "null-schema", "inputSchema": None, "description": None, "annotations": None},
    {"name": "empty-schema", "inputSchema": {}, "title": 5, "annotations": {"readOnlyHint": "yes"}},
    {"name": "true-schema", "inputSchema": True},
    {"name": "nullable-schema", "inputSchema": {"type": ["object", "null"]}},
    {"name": "output", "inputSchema": OBJECT, "outputSchema": {"type": "array"}, "icons": "none"},
    {"name": "text-schema", "inputSchema": {"type": "string"}},
    {"name": "list-schema", "inputSchema": []},
    {"description": "without a name", "inputSchema": OBJECT},
    {"name": None, "inputSchema": OBJECT},
    "not an object",
    ECHO,
]


def write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def send(message: object) -> None:
    write(json.dumps(message))


def noise() -> None:
    """Write what is no message: a banner, a log line, a progress bar, half a message, an empty line."""
    for line in ("Server running on stdio", "[INFO] ready " + os.environ["TOKEN"], "\r 50% ▓", "", '{"json'):
        write(line)
    for number in range(100):
        write(f"debug {number}")


def initialized(params: dict) -> dict:
    result = {
        "protocolVersion": params["protocolVersion"],
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "faulty", "version": "1"},
    }
    if "old" in FAULTS:
        result["protocolVersion"] = "2024-10-07"
    if "nulls" in FAULTS:
        result |= {"capabilities": None, "serverInfo": None, "instructions": None}
    return result


def listed(params: dict) -> dict:
    if "pages" in FAULTS:
        page = int(params.get("cursor") or 0)
        tools = [ECHO | {"name": f"echo{page}"}, ECHO]
        return {"tools": tools, "nextCursor": str(page + 1) if page < 2 else ""}
    if "same-page" in FAULTS:
        return {"tools": [ECHO], "nextCursor": "again"}
    if "unusual" in FAULTS:
        return {"tools": UNUSUAL, "nextCursor": None}
    return {"tools": [ECHO]}


def called() -> object:
    if "blocks" in FAULTS:
        known, unknown = {"type": "text", "text": "one"}, {"type": "video", "text": "two"}
        content = [known, unknown, {"type": "text"}, "three"]
        return {"content": content, "isError": None, "structuredContent": [1, 2], "_meta": None}
    if "no-content" in FAULTS:
        return {"structuredContent": [1, 2]}
    if "text-result" in FAULTS:
        return "done"
    return {"content": [{"type": "text", "text": "echoed"}]}


def requests() -> None:
    """Send requests that clients rarely support; the responses arrive before the next request."""
    for number, method in enumerate(("ping", "roots/list", "sampling/createMessage", "unknown/method")):
        send({"jsonrpc": "2.0", "id": f"server-{number}", "method": method, "params": {}})
    for _ in range(500):
        send({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
        send({"jsonrpc": "2.0", "method": "notifications/unknown", "params": {"x": 1}})


def respond(request: dict) -> None:
    if "noise" in FAULTS:
        noise()
    params = request.get("params") or {}
    match request["method"]:
        case "initialize":
            result: object = initialized(params)
        case "tools/list":
            if "requests" in FAULTS:
                requests()
            result = listed(params)
        case "tools/call":
            result = called()
        case _:
            send({"id": request["id"], "error": {"code": -32601, "message": "Method not found"}})
            return
    response: dict = {"jsonrpc": "2.0", "id": request["id"], "result": result}
    if "envelope" in FAULTS:
        # A number that became a float, an error that is null, and no version.
        response = {"id": float(request["id"]), "result": result, "error": None}
    send([response] if "batch" in FAULTS else response)


if "noise" in FAULTS:
    write("\ufeffstarting")
for line in sys.stdin:
    given = json.loads(line)
    if "method" in given and "id" in given:
        respond(given)
    if "exits" in FAULTS and given.get("method") == "tools/call":
        sys.exit(0)
