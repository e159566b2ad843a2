"""Servers that stand in for vendors: each refuses what its vendor refuses, and sends what its vendor sends.

Requests are checked with the types that vendors publish in their SDKs, and with the rules that their API
references and error messages state. Replies come from a `Brain`, a function of what the model reads.
"""
