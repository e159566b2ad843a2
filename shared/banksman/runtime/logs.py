"""Logs: one event per line with its context, and without secrets."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from functools import lru_cache
from typing import Any

import structlog

from banksman.contracts.visible import visible
from banksman.runtime.redaction import HIDDEN, KEYS, redacted, without_secrets
from banksman.runtime.settings import LogSettings

SECRET_NAMES = re.compile(
    r"token|secret|password|authorization|api[-_]?key|seed|signature|cookie", re.IGNORECASE
)
SECRET_VALUES = KEYS
_OWN_NAMES = frozenset({"level", "logger", "service", "timestamp"})
"""Values that this module adds to each line. They need no search for secrets, the main cost of a line."""


def configure(settings: LogSettings, *, service: str) -> None:
    """Send all logs of the process, including those of libraries, through one formatter to standard error."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    console = settings.format == "console" or (settings.format == "auto" and sys.stderr.isatty())
    renderers: list[Any] = [hide_secrets, _visible_event, structlog.dev.ConsoleRenderer()]
    if not console:
        # Secrets are hidden after the traceback is rendered, because it may contain some.
        json = structlog.processors.JSONRenderer()
        renderers = [structlog.processors.format_exc_info, hide_secrets, json]
    renderers.append(_without_secrets)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.level.upper())
    for noisy in ("uvicorn", "httpx", "httpx2", "httpcore", "faststream", "openai", "anthropic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    structlog.contextvars.bind_contextvars(service=service)


def hide_secrets(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Redact the values of secret names, and texts that look like keys within other values."""
    for key, value in event.items():
        if isinstance(value, str) and key not in _OWN_NAMES:
            event[key] = HIDDEN if _is_secret(key) else redacted(value)
    return event


@lru_cache(maxsize=1024)
def _is_secret(name: str) -> bool:
    return SECRET_NAMES.search(name) is not None


def _visible_event(_logger: Any, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Mark characters that control a terminal in the text; the renderer shows other values as `repr`."""
    event["event"] = visible(str(event["event"]))
    return event


def _without_secrets(_logger: Any, _name: str, line: str) -> str:
    """Remove the secrets of this process from a rendered line; an object among the values may contain one."""
    return without_secrets(line)
