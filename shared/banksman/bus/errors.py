"""Errors of the broker, in addition to `banksman.contracts.errors`, and the error replies to requests."""

from __future__ import annotations

from banksman.contracts.errors import BanksmanError, CallerMistake, ErrorCode, Fault, Signal, Unavailable
from banksman.contracts.frames import ErrorFrame, error_frame

NO_RESPONSE = "the message broker did not respond in time"
"""The message for clients when a request to the broker fails."""
UNREACHABLE = "the message broker cannot be reached"
"""The message for clients while there is no connection to the broker."""

_ERROR_HEAD = b'{"type":"error"'


class MessageTooLarge(CallerMistake):
    """A message exceeds the size limit."""

    code = ErrorCode.TOO_LARGE

    def __init__(self, subject: str, size: int, limit: int) -> None:
        self.size = size
        self.limit = limit
        super().__init__(f"{subject}: {size} bytes; the limit of a message is {limit}")

    @property
    def public(self) -> str:
        """The message for clients."""
        return f"the message has {self.size} bytes; the limit is {self.limit}"


class NoResponders(Unavailable):
    """No process serves the subject; nothing was done."""

    no_responders = True

    def __init__(self, subject: str) -> None:
        super().__init__(f"{subject}: no process serves it", public="no process serves this request now")


class TimedOut(Unavailable):
    """No reply arrived in time; the request may have been executed."""

    def __init__(self, subject: str, timeout_s: float) -> None:
        super().__init__(f"{subject}: no reply within {timeout_s:g} s", public=NO_RESPONSE)


class ConnectionReplaced(Unavailable):
    """The connection was lost and re-established; the request may have been executed."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"{subject}: the connection was lost before a reply arrived", public=NO_RESPONSE)


class Disconnected(Unavailable):
    """The connection has been down for longer than clients wait; the request may have been executed."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}: no connection to NATS", retry_after_s=2.0, public=UNREACHABLE)


class PublishRefused(Fault):
    """The server refused a durable publish."""

    def __init__(self, subject: str, err_code: int, description: str) -> None:
        super().__init__(f"{subject}: {description} ({err_code})")


class NewerVersion(Fault):
    """A message has a newer version; an upgraded process can read it."""

    def __init__(self, subject: str, version: int) -> None:
        super().__init__(f"{subject}: this process does not know version {version} of the message")


class LogDamaged(Fault):
    """A log is damaged. Nothing is appended to it until an operator restores or accepts it."""

    code = ErrorCode.CONFLICT

    def __init__(self, conversation_id: str, problem: str) -> None:
        self.problem = problem
        super().__init__(
            f"the log of {conversation_id} is damaged: {problem}. It accepts no run until an operator "
            "restores a backup or accepts the loss (`banksman check`)"
        )


class LogBroken(LogDamaged):
    """A stored commit is missing from a log: its successor names it, but the stream does not have it."""

    def __init__(self, subject: str, expected: int, found: int) -> None:
        super().__init__(
            subject.rpartition(".")[2],
            f"the commit after message {expected} is missing, the next one follows message {found}",
        )


class SlotTaken(Signal):
    """A write-once subject already has a message."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"{subject} already holds a message")


class WrongLastSequence(Signal):
    """Another message was stored on the subject first."""

    def __init__(self, subject: str, found: int) -> None:
        self.found = found
        """Stream sequence of the last message on the subject; 0 if it has none."""
        super().__init__(f"{subject}: the last message has sequence {found}")


class RemoteError(BanksmanError):
    """The process that served a request replied with an error."""

    def __init__(self, frame: ErrorFrame) -> None:
        self.frame = frame
        self.code = frame.code
        self.retryable = frame.retryable
        self.retry_after_s = frame.retry_after_s
        super().__init__(frame.message)


def error_envelope(error: Exception) -> bytes:
    """Encode an error as a reply. Details of unexpected errors are only logged."""
    if isinstance(error, BanksmanError):
        frame = error_frame(error)
    else:
        frame = ErrorFrame(code=ErrorCode.INTERNAL, message="internal error")
    return frame.model_dump_json(exclude_none=True).encode()


def checked_reply(data: bytes) -> bytes:
    """Return a reply unchanged; raise `RemoteError` if it is an error envelope."""
    if data.startswith(_ERROR_HEAD):
        raise RemoteError(ErrorFrame.model_validate_json(data))
    return data
