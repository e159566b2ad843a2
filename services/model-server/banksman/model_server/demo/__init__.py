"""The demo model: rules for plain requests such as "run `ls`" or "read notes.txt". Not a language model."""

from banksman.model_server.demo.reply import demo_reply

__all__ = ["demo_reply"]
