"""Webhooks: signed notifications to addresses of the tenant, retried until delivery for up to a day."""
