"""A client for people on a terminal: it knows of the gateway what any client knows."""
