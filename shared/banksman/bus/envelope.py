"""What a request over NATS answers when it fails: the error frame of the websocket, as bytes."""

from __future__ import annotations

import logging

from banksman.contracts.errors import BanksmanError, ErrorCode
from banksman.contracts.frames import ErrorFrame, error_frame

logger = logging.getLogger(__name__)


class RemoteError(BanksmanError):
    """Whoever served a request answered with an error."""

    def __init__(self, frame: ErrorFrame) -> None:
        self.frame = frame
        self.code = frame.code
        self.retryable = frame.retryable
        super().__init__(frame.message)

    @property
    def retry_after_s(self) -> float | None:
        """Seconds after which the other side says a retry makes sense."""
        return self.frame.retry_after_s


def error_envelope(error: Exception) -> bytes:
    """The answer that tells of `error`. What is not ours to tell stays in our logs."""
    if isinstance(error, BanksmanError):
        frame = error_frame(error)
    else:
        frame = ErrorFrame(code=ErrorCode.INTERNAL, message="internal error")
    return frame.model_dump_json(exclude_none=True).encode()


def answer(data: bytes) -> bytes:
    """The answer as it came, unless it is an error envelope.

    Raises:
        RemoteError: it is one.
    """
    if data.startswith(_ERROR_HEAD):
        raise RemoteError(ErrorFrame.model_validate_json(data))
    return data


_ERROR_HEAD = b'{"type":"error"'
