"""The agent service: consumes runs, drives the loop, calls models, appends the log."""
