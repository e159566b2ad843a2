"""The broker as the CLI deploys and operates it: its program, configuration, keys and operator connections."""
