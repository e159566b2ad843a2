"""Code that the HTTP interfaces share: checks before each request, error responses, streams."""
