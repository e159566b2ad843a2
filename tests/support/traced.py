"""Which messages the clients of a nats-server send, from the server's own trace."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from banksman.cli.state import DataDir
from tests.support.polling import wait_until

_SENT = re.compile(r' - cid:\d+ - "v[^:"]*:[^:"]*:([^"]*)" .*? - <<- \[H?PUB ([^\s\]]+)')
"""A message that a client sent: the client's name, and the subject."""
_API = re.compile(r"\$JS\.API\.(?:STREAM\.MSG\.\w+|CONSUMER\.MSG\.NEXT|\w+\.\w+)\.[^.]+")
_LOG = "nats.log"
_ENABLED, _DISABLED = "Reloaded: trace = true", "Reloaded: trace = false"
_RELOADED = "Reloaded server configuration"


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace of a server, in its log."""

    logs: Path
    """The directory of the log and of its rotated files."""

    def sent(self) -> Counter[tuple[str, str]]:
        """Return the number of messages that each client sent to each kind of subject, see `kind_of`."""
        found = _SENT.finditer(self.text)
        return Counter((match[1], kind_of(match[2])) for match in found)

    @property
    def text(self) -> str:
        """The log since the trace was switched on; empty before."""
        oldest_first = sorted(self.logs.glob(f"{_LOG}*"), reverse=True)
        text = "".join(file.read_text(encoding="utf-8", errors="replace") for file in oldest_first)
        return text.rpartition(_ENABLED)[2] if _ENABLED in text else ""


@contextmanager
def traced(pid: int, data: DataDir) -> Generator[Trace]:
    """Enable tracing in the server of a local system during the block; `pid` is the server's process."""
    config = data.nats / "nats.conf"
    original = config.read_text(encoding="utf-8")
    trace = Trace(data.logs)
    try:
        # Traced payloads would be hundreds of kilobytes per run.
        config.write_text(f"{original}trace: true\nmax_traced_msg_len: 1\n", encoding="utf-8")
        os.kill(pid, signal.SIGHUP)
        wait_until(lambda: _RELOADED in trace.text)
        yield trace
    finally:
        config.write_text(original, encoding="utf-8")
        os.kill(pid, signal.SIGHUP)
        wait_until(lambda: _DISABLED in trace.text)


def kind_of(subject: str) -> str:
    """Return a subject without the parts that differ between runs.

    Requests of the JetStream API keep their stream, acknowledgements their stream and consumer, and stored
    keys their bucket; of other subjects the first two tokens before the tenant remain.
    """
    if match := _API.match(subject):
        return match[0]
    tokens = subject.split(".")
    match tokens[0]:
        case "_INBOX" | "_R_":
            return "reply"
        case "$JS":
            return ".".join(tokens[:4])
        case "$KV" | "tool" | "run":
            return ".".join(tokens[:2])
        case first:
            return "reply" if first.startswith("_INBOX") else first
