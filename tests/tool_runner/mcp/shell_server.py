"""A server of the Model Context Protocol whose one tool runs a command and returns what it wrote."""

import json
import subprocess
import sys


def respond(method: str, params: dict) -> dict:
    if method == "initialize":
        server = {"name": "shell", "version": "1"}
        version = params["protocolVersion"]
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
    if method == "tools/list":
        return {"tools": [{"name": "run", "inputSchema": {"type": "object"}}]}
    done = subprocess.run(params["arguments"]["text"], shell=True, capture_output=True, text=True)
    return {"content": [{"type": "text", "text": done.stdout + done.stderr}]}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        result = respond(request["method"], request.get("params") or {})
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}) + "\n")
        sys.stdout.flush()
