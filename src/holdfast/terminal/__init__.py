"""A terminal, seen and typed into: its screen, keys, sizes, and what may reach a person's own.

It imports `core`, `linux` and `output`.
"""
