"""Process isolation round one command."""
