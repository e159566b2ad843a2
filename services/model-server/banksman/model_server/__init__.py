"""A small HTTP server with the wire formats of OpenAI and Anthropic, for use without a key.

Models: `demo`, a set of rules that understands plain requests, and `scripted/<name>`, which plays the
`Script` of that name. Any other model returns 404. Requests are read, not validated: a history that a vendor
refuses gets a reply.

Routes:
    `POST /v1/chat/completions`: OpenAI, streamed or not.
    `POST /v1/messages`, `POST /v1/messages/count_tokens`: Anthropic, streamed or not.
    `GET /v1/models`, `GET /v1/models/{id}`: in Anthropic's format if `anthropic-version` is sent.
    `GET /healthz`, `GET /readyz`: always 200.

Scripts contain faults and gates too, for tests of this project: their server, in `tests/support`, also checks
and records requests, and loads scripts and opens gates while it runs.
"""

from banksman.model_server.script import (
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
    "ScriptedCall",
    "ScriptedReply",
    "ScriptedUsage",
    "Silence",
    "StreamError",
]
