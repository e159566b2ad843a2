"""The tools that models may call: their registry, and the selection for each run."""
