"""One container per workspace. Only `backends` imports this folder, so it can be removed."""
