"""One iteration of a run: from the folded log to a model request, and from its reply to events."""
