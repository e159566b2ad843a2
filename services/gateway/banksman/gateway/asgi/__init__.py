"""What the interfaces over HTTP share: checks before each request, error responses, streams."""
