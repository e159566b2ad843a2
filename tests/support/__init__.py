"""Test support: real servers and services, started small, and clients of them."""
