"""A small local Gerrit: an API that returns JSON, for agents to fetch."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from banksman.cli.machine import free_port

CHANGES = [
    {"_number": 101, "subject": "Fix the lease", "status": "MERGED", "insertions": 12},
    {"_number": 102, "subject": "Add a page", "status": "NEW", "insertions": 340},
]


@contextmanager
def gerrit() -> Generator[str]:
    """Serve until the context ends; yields the address and port, such as `127.0.0.1:12345`."""
    port = free_port()
    server = ThreadingHTTPServer(("127.0.0.1", port), _Changes)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Changes(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        found = self.path.startswith("/changes/")
        # Gerrit's prefix prevents the inclusion of its JSON as a script by other sites.
        body = b")]}'\n" + json.dumps(CHANGES if found else {"error": "Not found"}).encode()
        self.send_response(200 if found else 404)
        self.send_header("content-type", "application/json; charset=UTF-8")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""
