"""A git server over HTTP with one bare repository, which may require a password."""

from __future__ import annotations

import base64
import subprocess
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_SERVICE = "git-upload-pack"
IDENTITY = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")


def git(directory: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *IDENTITY, *words], cwd=directory, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def new_repository(directory: Path, files: dict[str, str], *, branch: str = "main") -> Path:
    """Create a repository with one commit."""
    directory.mkdir(parents=True)
    git(directory, "init", "-q", "-b", branch)
    commit(directory, files)
    return directory


def commit(directory: Path, files: dict[str, str], message: str = "Change files") -> None:
    for path, text in files.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(text)
    git(directory, "add", "-A")
    git(directory, "commit", "-q", "-m", message)


class GitServer:
    def __init__(self, directory: Path, port: int, password: str | None) -> None:
        self.address = f"127.0.0.1:{port}"
        self.url = f"http://{self.address}/team/project.git"
        self.requests: list[str] = []
        self.directory = directory
        self.password = password


@contextmanager
def serving_git(directory: Path, *, port: int = 0, password: str | None = None) -> Generator[GitServer]:
    """Serve a repository at `/team/project.git` while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply("advertisement", b"001e# service=git-upload-pack\n0000", ["--advertise-refs"], b"")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            self._reply("result", b"", [], body)

        def _reply(self, kind: str, head: bytes, options: list[str], body: bytes) -> None:
            served.requests.append(f"{self.command} {self.path}")
            expected = f"Basic {base64.b64encode(f'git:{served.password}'.encode()).decode()}"
            if served.password is not None and self.headers["authorization"] != expected:
                self.send_error(401)
                return
            if not self.path.startswith("/team/project.git/"):
                self.send_error(404)
                return
            command = ["git", "upload-pack", "--stateless-rpc", *options, str(served.directory)]
            done = subprocess.run(command, input=body, capture_output=True, check=False)
            content = head + done.stdout
            self.send_response(200)
            self.send_header("content-type", f"application/x-{_SERVICE}-{kind}")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *_: object) -> None:
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    served = GitServer(directory, server.server_address[1], password)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
