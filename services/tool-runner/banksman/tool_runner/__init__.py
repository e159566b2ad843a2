"""The service that runs tools: one sandbox per call, one workspace per conversation."""
