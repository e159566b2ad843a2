"""A2A 1.0 at `POST /a2a`: runs as the tasks of the Agent2Agent protocol."""
