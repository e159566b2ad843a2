"""The HTTP interface: context endpoints and API documents."""
