"""The servers of models that tenants set beside those of the operator's settings."""
