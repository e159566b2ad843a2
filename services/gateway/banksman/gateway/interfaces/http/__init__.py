"""The HTTP interface: the routes of operations, the checks of every request, the API documents."""
