"""Handlers of requests and of durable consumers, declared with FastStream."""
