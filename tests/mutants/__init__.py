"""Mutation pass over the requirements: each removes one required behaviour, and a test must fail.

    make mutants                          # all of them
    make mutants ARGS="R7 R12"            # those of some requirements

A mutant is one replacement in a copy of the tree, and the tests that must notice it. `test_table` checks that
every requirement has a mutant, and that the sources contain the text of each exactly once.
"""
