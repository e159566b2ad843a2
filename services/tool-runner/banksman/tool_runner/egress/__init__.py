"""Outgoing connections of the runner: rules, checked addresses, fetches and the proxy of commands."""
