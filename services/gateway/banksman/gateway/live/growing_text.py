"""The text of one message in a stream, which can only append."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class GrowingText:
    """A message that is being streamed."""

    message_id: str
    sent: str = ""
    differs: bool = False
    """Whether a repeated model request wrote another text, which is sent when it is complete."""

    def new(self, offset: int, text: str) -> str:
        """Return the part of a delta that was not sent yet; empty if it does not continue the sent text."""
        known = self.sent[offset : offset + len(text)]
        self.differs = self.differs or offset > len(self.sent) or not text.startswith(known)
        added = "" if self.differs else text[len(known) :]
        self.sent += added
        return added

    def rest(self, content: str) -> str:
        """Return the unsent part of the complete text; all of it, after a blank line, if it differs."""
        if content.startswith(self.sent):
            return content[len(self.sent) :]
        return f"\n\n{content}" if self.sent else content
