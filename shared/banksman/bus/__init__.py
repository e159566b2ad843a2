"""The broker: the only code that knows NATS. Everything else speaks of logs, slots, work and buckets."""
