"""A log, read: ranges and lines of it, its plain text, views for a model, searches.

Nothing here waits, and nothing writes to a log. It imports `core`.
"""
