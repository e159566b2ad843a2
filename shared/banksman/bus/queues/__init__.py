"""Work queues: pulls, slots that tenants share, and the outcomes of handled messages."""
