"""The processes that execute calls: where calls and workspaces are placed, and the side of the runner."""
