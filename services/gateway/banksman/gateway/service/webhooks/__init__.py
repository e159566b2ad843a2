"""Webhooks: what happened is sent to addresses of the tenant's choice, signed, and again until it arrives."""
