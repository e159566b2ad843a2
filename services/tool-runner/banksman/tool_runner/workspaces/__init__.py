"""Workspaces of one runner: their files, turns, snapshots and quotas."""
