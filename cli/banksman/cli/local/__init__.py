"""The whole system on one machine: nats-server and all services, supervised by one process."""
