"""Adapters of the vendors' model APIs, the only code that imports their SDKs."""
