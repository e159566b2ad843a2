"""Limits of pages that HTTP and NATS share."""

from __future__ import annotations

MAX_CALLS = 50
"""Calls in one page. A call has up to 256 KiB, usually a few KiB."""
MAX_PENDING = 1_000
"""Open requests in one page."""
MAX_POSITION = 2**63 - 2
"""Maximum position that a page of open requests may follow."""
