"""A small HTTP server that speaks the OpenAI and the Anthropic wire formats: scripts and a demo model."""

from banksman.model_server.recorder import Outcome, RecordedRequest, Violation
from banksman.model_server.script import (
    ConnectionCut,
    EarlyEnd,
    Fault,
    FinishReason,
    Gate,
    HalfJson,
    HttpError,
    RawReply,
    Reply,
    Script,
    Silence,
    StreamError,
    ToolCall,
    Usage,
)
from banksman.model_server.server import ModelServer, serve

__all__ = [
    "ConnectionCut",
    "EarlyEnd",
    "Fault",
    "FinishReason",
    "Gate",
    "HalfJson",
    "HttpError",
    "ModelServer",
    "Outcome",
    "RawReply",
    "RecordedRequest",
    "Reply",
    "Script",
    "Silence",
    "StreamError",
    "ToolCall",
    "Usage",
    "Violation",
    "serve",
]
