"""The broker as the CLI deploys it: program, configuration, keys and operator connections."""
