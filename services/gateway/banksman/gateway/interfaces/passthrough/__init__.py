"""The model APIs, forwarded to an upstream byte by byte."""
