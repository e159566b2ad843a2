"""Sign-in through an OpenID Connect provider, and the bearer tokens of the provider."""
