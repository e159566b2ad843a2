"""The four workspace tools, each with what a model is told of it."""
