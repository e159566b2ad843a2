"""Process isolation of one call: what both backends share, their choice, and their self-test."""
