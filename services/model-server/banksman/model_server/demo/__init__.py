"""The demo model: rules that understand plain requests, no language model."""

from banksman.model_server.demo.reply import demo_reply

__all__ = ["demo_reply"]
