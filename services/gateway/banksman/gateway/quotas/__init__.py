"""Quotas."""
