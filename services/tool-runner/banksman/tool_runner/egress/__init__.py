"""Outgoing connections of the runner: host rules, checked addresses, fetches and the proxy of commands."""
