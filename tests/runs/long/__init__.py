"""Long logs and histories."""
