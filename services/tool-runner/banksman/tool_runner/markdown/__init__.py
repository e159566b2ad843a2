"""Converts HTML pages to Markdown in a confined process."""
