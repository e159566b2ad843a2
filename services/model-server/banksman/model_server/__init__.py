"""A small HTTP server that speaks the OpenAI and the Anthropic wire formats, so that no key is needed.

Models: `demo`, a set of rules that understands plain requests, and `scripted/<name>`, which plays the
`Script` of that name. Every other model is a 404. Histories are checked as strictly as the vendors do;
what they would refuse is refused with their error object and kept as a `Violation`.

Routes:
    `POST /v1/chat/completions`: OpenAI, streamed or not.
    `POST /v1/messages`, `POST /v1/messages/count_tokens`: Anthropic, streamed or not.
    `GET /v1/models`, `GET /v1/models/{id}`: in Anthropic's shape when `anthropic-version` is sent.
    `GET /healthz`, `GET /readyz`: always 200.

Routes of tests, only while requests are recorded:
    `PUT /scripts/{name}`: the JSON of a `Script`; answers with its model. `DELETE` forgets it.
    `GET /requests?script=&at_least=&wait_s=`: recorded requests, after waiting for that many. `DELETE`.
    `GET /violations`: what broke a vendor's rules. `DELETE`.
    `PUT /gates/{name}`: lets the replies pass that wait at this `Gate`.
"""

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
