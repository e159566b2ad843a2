"""The service that runs tools: one sandbox a call, one workspace a conversation."""
