"""What clients see of a conversation while it changes: feeds of its events, and the runs that they follow."""
