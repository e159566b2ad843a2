"""The whole system on one machine: nats-server and every service, kept alive by one process."""
