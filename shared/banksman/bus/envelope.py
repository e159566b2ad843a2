"""Error replies to NATS requests: the encoded error frame of the websocket."""

from __future__ import annotations

import logging

from banksman.contracts.errors import BanksmanError, ErrorCode
from banksman.contracts.frames import ErrorFrame, error_frame

logger = logging.getLogger(__name__)


class RemoteError(BanksmanError):
    """The process that served a request replied with an error."""

    def __init__(self, frame: ErrorFrame) -> None:
        self.frame = frame
        self.code = frame.code
        self.retryable = frame.retryable
        super().__init__(frame.message)

    @property
    def retry_after_s(self) -> float | None:
        """Seconds after which the replying process advises a retry; None if it gave no time."""
        return self.frame.retry_after_s


def error_envelope(error: Exception) -> bytes:
    """Encode an error as a reply. Details of unexpected errors are only logged."""
    if isinstance(error, BanksmanError):
        frame = error_frame(error)
    else:
        frame = ErrorFrame(code=ErrorCode.INTERNAL, message="internal error")
    return frame.model_dump_json(exclude_none=True).encode()


def checked_reply(data: bytes) -> bytes:
    """Return a reply unchanged if it is not an error envelope.

    Raises:
        RemoteError: The reply is an error envelope.
    """
    if data.startswith(_ERROR_HEAD):
        raise RemoteError(ErrorFrame.model_validate_json(data))
    return data


_ERROR_HEAD = b'{"type":"error"'
