"""Tools of servers of the Model Context Protocol: in the sandbox of a workspace, or over HTTP."""
