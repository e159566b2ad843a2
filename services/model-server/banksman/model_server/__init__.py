"""A small HTTP server with the wire formats of OpenAI and Anthropic, for use without a key.

Models: `demo`, a set of rules that understands plain requests, and `scripted/<name>`, which plays the
`Script` of that name. Any other model returns 404. Requests are read, not validated: a history that a vendor
refuses gets a reply.

Routes:
    `POST /v1/chat/completions`: OpenAI, streamed or not.
    `POST /v1/messages`, `POST /v1/messages/count_tokens`: Anthropic, streamed or not.
    `GET /v1/models`, `GET /v1/models/{id}`: in Anthropic's format if `anthropic-version` is sent.
    `GET /healthz`, `GET /readyz`: always 200.

Routes for tests, only while requests are recorded:
    `PUT /scripts/{name}`: the JSON of a `Script`; returns the name of its model. `DELETE` removes it.
    `GET /requests?script=&at_least=&wait_s=`: recorded requests, after waiting for that many.
    `DELETE /requests`: removes the records.
    `PUT /gates/{name}`: opens the `Gate` at which replies wait.
"""

from banksman.model_server.recorder import Outcome, RecordedRequest
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
    "Outcome",
    "RawReply",
    "RecordedRequest",
    "Script",
    "ScriptedCall",
    "ScriptedReply",
    "ScriptedUsage",
    "Silence",
    "StreamError",
]
