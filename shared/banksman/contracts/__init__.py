"""The words every service shares: wire models, subjects, ids and errors. Pure; imports no I/O library."""
