"""Plain data and the files that hold it: records, the home, events, cursors, the wire, errors.

What is here means the same to keeper, client and runner. It imports the standard library alone.
"""
