"""Code that depends on undocumented parts of libraries, one module per library.

Each module names the parts that it uses and the reason. A test in `tests/library_internals` fails on a
release of the library that changes one of these parts.
"""
