"""The common parts of every process: settings, logs, metrics, health and a graceful shutdown."""
