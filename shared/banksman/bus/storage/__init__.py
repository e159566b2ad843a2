"""What streams store: event logs, buckets, objects, write-once slots, leases."""
