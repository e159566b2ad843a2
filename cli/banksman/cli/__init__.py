"""The command line: what operators run, and a client for people on a terminal."""
