"""AG-UI 1.0 at `POST /agui`: the events of runs in the terms of the Agent User Interaction protocol."""
