"""Process isolation of one command."""
