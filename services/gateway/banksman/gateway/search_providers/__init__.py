"""The provider of web searches that an administrator of a tenant chooses."""
