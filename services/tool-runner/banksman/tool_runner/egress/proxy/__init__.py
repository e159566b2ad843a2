"""The way out of a command whose assistant's policy grants one: an HTTP proxy under the rules of a fetch."""
