"""The contract between services and clients: wire models, subjects, ids, errors. Imports no I/O library."""
