"""What the broker can answer, in addition to `banksman.contracts.errors`.

CallerMistake
└── MessageTooLarge       more bytes than a message may have
Refused
├── Unavailable
│   ├── NoResponders      nobody serves the subject: nothing was done
│   ├── TimedOut          no answer in time: it may have been done
│   └── ConnectionLost    the connection broke and stands again: it may have been done
└── Overloaded            a stream's or the server's storage is full
Fault
├── PublishRefused        the server refused a durable publish for another reason
├── NewerVersion          a message of a version that this process does not read yet
├── LogBroken             a stored commit is missing from a log
└── LogDamaged            a log is known to be damaged: no run goes on in it
Signals of compare-and-set, for the caller to handle
├── SlotTaken             a write-once subject holds a message already
└── WrongLastSequence     another message was stored on the subject first
"""

from __future__ import annotations

from banksman.contracts.errors import CallerMistake, ErrorCode, Fault, Signal, Unavailable


class MessageTooLarge(CallerMistake):
    """More bytes than a message may have."""

    code = ErrorCode.TOO_LARGE

    def __init__(self, subject: str, size: int, limit: int) -> None:
        self.subject = subject
        self.size = size
        self.limit = limit
        super().__init__(f"{subject}: {size} bytes, at most {limit} fit one message")


class NoResponders(Unavailable):
    """Nobody serves the subject; nothing was done."""

    no_responders = True

    def __init__(self, subject: str) -> None:
        self.subject = subject
        super().__init__(f"{subject}: nobody answers there")


class TimedOut(Unavailable):
    """No answer in time; what was asked may have been done."""

    def __init__(self, subject: str, timeout_s: float) -> None:
        self.subject = subject
        self.timeout_s = timeout_s
        super().__init__(f"{subject}: no answer within {timeout_s:g} s")


class ConnectionLost(Unavailable):
    """The connection broke and stands again; what was asked may have been done."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        super().__init__(f"{subject}: the connection was lost before the answer came")


class PublishRefused(Fault):
    """The server refused a durable publish."""

    def __init__(self, subject: str, err_code: int, description: str) -> None:
        self.subject = subject
        self.err_code = err_code
        self.description = description
        super().__init__(f"{subject}: {description} ({err_code})")


class NewerVersion(Fault):
    """A message of a higher version: a process that was upgraded may read it."""

    def __init__(self, subject: str, version: int) -> None:
        self.subject = subject
        self.version = version
        super().__init__(f"{subject}: version {version} of this message is not known here")


class LogBroken(Fault):
    """A stored commit is missing from a log: its successor names it, and the stream does not have it."""

    def __init__(self, subject: str, expected: int, found: int) -> None:
        self.subject = subject
        self.expected = expected
        self.found = found
        super().__init__(f"{subject}: the commit after {expected} names {found} as the one before it")


class LogDamaged(Fault):
    """A log is known to be damaged. Nothing is appended to it before an operator restored or accepted it."""

    code = ErrorCode.CONFLICT

    def __init__(self, tenant: str, conversation_id: str, problem: str) -> None:
        self.tenant = tenant
        self.conversation_id = conversation_id
        self.problem = problem
        super().__init__(
            f"the log of {conversation_id} is damaged: {problem}. No run goes on in it until an operator "
            "restores a backup or accepts the loss (`banksman check`)"
        )


class SlotTaken(Signal):
    """A write-once subject holds a message already."""

    def __init__(self, subject: str) -> None:
        self.subject = subject
        super().__init__(f"{subject} is taken")


class WrongLastSequence(Signal):
    """Another message was stored on the subject first."""

    def __init__(self, subject: str, found: int) -> None:
        self.subject = subject
        self.found = found
        """Stream sequence of the subject's last message; 0 when it has none."""
        super().__init__(f"{subject}: the last message is {found}")
