"""Pages of HTML turned into Markdown by a process that can do nothing else."""
