"""The bodies that the operations of several features share."""

from __future__ import annotations

from typing import Generic, TypeVar

from banksman.contracts.wire import Stored, Wire

T = TypeVar("T")


class RequestBody(Wire):
    """The body of a request."""


class Listing(Stored, Generic[T]):
    """A list in one page."""

    items: tuple[T, ...]
    next: None = None
