"""The audit trail of tenants, in which the dispatcher records operations."""
