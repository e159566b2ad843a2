"""The websocket interface."""
