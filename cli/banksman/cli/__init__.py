"""The command line: `local` runs the system, `operator` administers a deployment, `client` uses a gateway."""
