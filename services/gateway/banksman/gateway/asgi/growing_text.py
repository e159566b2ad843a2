"""The text of one message as a stream sends it: it can only grow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class GrowingText:
    """A message that is being streamed."""

    message_id: str
    sent: str = ""
    differs: bool = False
    """Whether the model began the text again, with other words: the rest follows when it is complete."""

    def new(self, offset: int, text: str) -> str:
        """Return what a delta adds: text that was sent is not repeated, and none is left out."""
        known = self.sent[offset : offset + len(text)]
        self.differs = self.differs or offset > len(self.sent) or not text.startswith(known)
        added = "" if self.differs else text[len(known) :]
        self.sent += added
        return added

    def rest(self, content: str) -> str:
        """Return what the complete text adds."""
        if content.startswith(self.sent):
            return content[len(self.sent) :]
        return f"\n\n{content}" if self.sent else content
