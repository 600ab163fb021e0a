"""Detectors: what tells that output matches, that nothing was written, that a port is served, that
somebody is asked for input. A wait and a watch use the same ones.

A detector says what is so now. When to look again, and whom to tell, is for who uses it: the waits
of `client`, the program `watcher`. It imports `core`, `linux` and `output`.
"""
