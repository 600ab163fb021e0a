"""Programs that stand for a process elsewhere, each started by the keeper in its place.

They import the standard library, `core` and `linux`.
"""
