"""What every process needs to run: settings, logs, metrics, health and an orderly end."""
