"""A server with prompts, which the variable `FAULTS` makes hostile. It writes JSON by hand."""

import json
import os
import sys

FAULTS = os.environ.get("FAULTS", "").split()
TOKEN = os.environ["TOKEN"]
HIDDEN = "\x1b[31m\u202eetirw\u200b"
SUMMARY = {
    "name": "summary",
    "title": "Summary",
    "description": f"Summarizes a text.\r\nIn lines {HIDDEN} {TOKEN}",
    "arguments": [{"name": "topic", "description": "What it is about", "required": True}, {"name": "tone"}],
}
UNUSABLE = [
    {"name": f"a{HIDDEN}"},
    {"name": TOKEN},
    {"name": "n" * 300},
    {"name": "many", "arguments": [{"name": f"a{number}"} for number in range(30)]},
    {"name": "argument", "arguments": [{"name": f"a{HIDDEN}"}]},
    {"description": "without a name"},
]


def send(message: dict) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def listed(params: dict) -> dict:
    if "huge-list" in FAULTS:
        return {"prompts": [{"name": f"p{number}", "description": "d" * 1_000} for number in range(10_000)]}
    if "many" in FAULTS:
        page = int(params.get("cursor") or 0)
        names = [{"name": f"p{page}-{number}"} for number in range(500)]
        return {"prompts": names, "nextCursor": str(page + 1) if page < 19 else None}
    return {"prompts": [*UNUSABLE, SUMMARY]}


def got(params: dict) -> dict:
    given = json.dumps(params.get("arguments"), sort_keys=True)
    texts = [f"Summarize {given}.\r\nPrice\xa0{HIDDEN} {TOKEN}"]
    if "huge" in FAULTS:
        texts = ["x" * 200_000]
    if "too-long" in FAULTS:
        texts = ["x" * 2_000_000]
    messages = [{"role": "user", "content": {"type": "text", "text": text}} for text in texts]
    file = {"type": "resource", "resource": {"uri": "file:///a", "text": "of a file"}}
    image = {"type": "image", "mimeType": "image/png", "data": "AAAA"}
    return {"messages": [*messages, *({"role": "user", "content": one} for one in (file, image))]}


def respond(request: dict) -> None:
    params = request.get("params") or {}
    match request["method"]:
        case "initialize":
            info = {"serverInfo": {"name": "prompts", "version": "1"}}
            capabilities = {"tools": {}, "prompts": {}}
            result = {"protocolVersion": params["protocolVersion"], "capabilities": capabilities, **info}
        case "tools/list":
            result = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
        case "prompts/list" if "no-list" not in FAULTS:
            result = listed(params)
        case "prompts/get" if "silent" in FAULTS:
            return
        case "prompts/get" if "refuses" not in FAULTS:
            result = got(params)
        case _:
            text = f"no {request['method']} for {TOKEN}"
            send({"id": request["id"], "error": {"code": -32602, "message": text}})
            return
    send({"id": request["id"], "result": result})


for line in sys.stdin:
    given = json.loads(line)
    if "method" in given and "id" in given:
        respond(given)
