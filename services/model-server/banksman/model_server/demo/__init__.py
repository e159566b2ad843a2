"""The demo model: rules for plain requests such as "run `ls`" or "read notes.txt". Not a language model."""
