"""Messages that runners and tool servers publish: agents check them and store them in the streams."""
