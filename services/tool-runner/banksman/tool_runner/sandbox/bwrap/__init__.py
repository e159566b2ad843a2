"""One bubblewrap per command: its processes, cgroups and limits."""
