from __future__ import annotations

from typing import Literal

from banksman.model_server.json_values import Json

ErrorType = Literal["invalid_request_error", "not_found_error"]
"""The vendor's type of an error.

- `invalid_request_error`: the request breaks a rule of the wire format
- `not_found_error`: the model or the path does not exist
"""


class RequestRefused(Exception):
    """A request is refused with an error object of its vendor."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        error_type: ErrorType = "invalid_request_error",
        details: Json | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status
        self.error_type: ErrorType = error_type
        self.details = details

    @property
    def is_violation(self) -> bool:
        """Whether the request broke the wire format, as opposed to naming a missing model or path."""
        return self.status == 400


def model_not_found(model: str) -> RequestRefused:
    """Return the error for a model that is neither the demo nor a loaded script."""
    return RequestRefused(
        f"The model `{model}` does not exist. This server has `demo` and the scripts listed at /v1/models.",
        code="model_not_found",
        status=404,
        error_type="not_found_error",
    )
