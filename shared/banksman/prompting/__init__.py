"""System prompts: templates, tool descriptions and calling instructions. Does no I/O."""
