"""The NATS interface, for services without HTTP."""
