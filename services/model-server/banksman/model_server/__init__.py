"""A small HTTP server of the model `demo` in the wire formats of OpenAI and Anthropic, for use without a key.

The model is a set of rules that understands plain requests. Any other model returns 404. Requests are read,
not validated: a history that a vendor refuses gets a reply.

Routes:
    `POST /v1/chat/completions`: OpenAI, streamed or not.
    `POST /v1/responses`: OpenAI's responses, streamed or not.
    `POST /v1/messages`, `POST /v1/messages/count_tokens`: Anthropic, streamed or not.
    `GET /v1/models`, `GET /v1/models/{id}`: in Anthropic's format if `anthropic-version` is sent.
    `GET /healthz`, `GET /readyz`: always 200.

The server of this project's tests, in `tests/support`, extends it with models that play scripts.
"""
