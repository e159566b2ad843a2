"""Models that play scripts: replies, faults and gates in the wire formats of the model server."""

from tests.support.scripted_models.script import (
    ConnectionCut,
    EarlyEnd,
    Fault,
    Gate,
    HalfJson,
    HttpError,
    RawReply,
    Script,
    ScriptedCall,
    ScriptedReply,
    ScriptedUsage,
    ScriptName,
    Silence,
    StreamError,
)

__all__ = [
    "ConnectionCut",
    "EarlyEnd",
    "Fault",
    "Gate",
    "HalfJson",
    "HttpError",
    "RawReply",
    "Script",
    "ScriptName",
    "ScriptedCall",
    "ScriptedReply",
    "ScriptedUsage",
    "Silence",
    "StreamError",
]
