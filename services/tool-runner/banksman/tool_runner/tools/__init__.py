"""The workspace tools and the tool box that runs them."""
