"""What clients and commands saw of a system, as JSON lines, and a judge of it.

`records` says what a line may be, `folded` reads a file into one picture, `checks` are the promises, and
`python -m tests.support.history FILE` judges any recording, without the system that it is of.
"""
